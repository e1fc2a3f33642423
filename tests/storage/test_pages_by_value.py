"""Through real files: many conversations in little memory, foreign and damaged pages, other identities, a broken start."""

import pytest

from kvcache_core.errors import StorageError

NO_WAIT = 30.0


def conversation(number, turns, page=4):
    return [1000 * number + i for i in range(2 * page * turns + 1)]


def page_files(store):
    return sorted(path for path in store.folder.rglob("*.npy"))


def exchange(one, other):
    spare = one.with_suffix(".spare")
    one.rename(spare)
    other.rename(one)
    spare.rename(other)


@pytest.mark.parametrize("host_pool", ["per_page", "preallocated"])
@pytest.mark.parametrize("async_impl", ["future", "threadpool"])
@pytest.mark.parametrize(("backup_on", "persist_on"), [("insert", "insert"), ("insert", "evict"), ("evict", "evict")])
def test_interleaved_conversations_through_a_tiny_host_tier(start, host_pool, async_impl, backup_on, persist_on):
    """B9, P7: every page that is read has the content that belongs to its key, and what was not computed was a hit."""
    settings = {"host_pool": host_pool, "async_impl": async_impl, "backup_on": backup_on, "persist_on": persist_on}
    store = start(pages=24, hicache={"ratio": 0.75, **settings})
    fetched = 0
    for turns in range(1, 8):
        for number in range(5):
            served = store.serve(conversation(number, turns))
            store.settle()
            fetched += served.span[1] - served.span[0]
    assert fetched > 20
    assert store.cache.counters.storage_loaded_tokens >= fetched
    assert not store.cache.counters.misses


def test_a_foreign_page_is_a_counted_miss_and_repaired(start):
    first = start()
    first.serve(conversation(1, 2))
    first.cache.close()
    files = page_files(first)
    assert len(files) == 4
    exchange(files[0], files[1])
    second = start()
    computed = second.serve(conversation(1, 2)).computed
    assert computed > 4 and second.cache.counters.misses["bad page: checksum"] == 2
    second.cache.close()
    assert page_files(second) == files
    third = start()
    assert third.serve(conversation(1, 2)).computed == 1
    assert not third.cache.counters.misses


def what_is_there(store):
    return {path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns) for path in store.folder.rglob("*")}


def test_a_storage_that_is_only_read_stays_as_it_is(start):
    """Also what is damaged in it, and the times by which its keepers know what was used."""
    first = start()
    first.serve(conversation(1, 2))
    first.cache.close()
    files = page_files(first)
    files[0].write_bytes(files[0].read_bytes()[:-1])
    before = what_is_there(first)
    reader = start(hicache={"persist_on": "never"})
    assert reader.serve(conversation(1, 2)).computed > 4
    reader.serve(conversation(2, 3))
    assert reader.cache.counters.misses == {"bad page: not a page": 1} and reader.cache.counters.storage_state == "ok"
    reader.cache.close()
    assert what_is_there(first) == before


def test_a_storage_that_is_only_read_and_not_there_fails_the_start(start, tmp_path):
    """A wrong path must not become a silent miss for every page, nor a folder."""
    with pytest.raises(StorageError, match=r"cannot use the folder .*No such file or directory"):
        start(hicache={"persist_on": "never"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"", lambda b: b[:140] + bytes([b[140] ^ 1]) + b[141:]],
    ids=["truncated", "trailing junk", "empty", "one bit"],
)
def test_a_damaged_page_is_a_counted_miss_and_repaired(start, damage):
    """B1."""
    first = start()
    first.serve(conversation(1, 2))
    first.cache.close()
    files = page_files(first)
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    second = start()
    assert second.serve(conversation(1, 2)).computed == 17
    assert sum(second.cache.counters.misses.values()) == 4
    second.cache.close()
    third = start()
    assert third.serve(conversation(1, 2)).computed == 1


def test_other_identities_never_hit(start):
    """K1, K5."""
    first = start()
    first.serve(conversation(1, 2), (b"lora",))
    first.cache.close()
    second = start()
    assert second.serve(conversation(1, 2)).computed == 17
    assert second.serve(conversation(1, 2), (b"lora",)).computed == 1
    newer = start(version="2")
    assert newer.serve(conversation(1, 2), (b"lora",)).computed == 17


def test_a_root_that_is_a_file_stops_the_program(start, tmp_path):
    """C5, S4."""
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(StorageError) as info:
        start()
    assert info.value.path[:2] == ("hicache", "storage")


def test_a_storage_that_vanishes_while_running(start):
    """S4: everything is served; what was promised is recomputed."""
    store = start(hicache={"persist_on": "insert", "ratio": 0.5}, pages=24)
    for number in range(4):
        store.serve(conversation(number, 2))
    assert not store.cache.persist(NO_WAIT).remaining
    files = page_files(store)
    assert len(files) == 4 * 4
    for path in files:
        path.unlink()
    written = store.cache.counters.storage_written_tokens
    for number in range(4):
        assert store.serve(conversation(number, 3)).span == (0, 0)
    report = store.cache.persist(NO_WAIT)
    assert not report.remaining and not report.dropped
    # What is new is there, and what the report counts is there.
    assert store.cache.counters.storage_written_tokens - written == 4 * len(page_files(store)) >= 4 * 8
