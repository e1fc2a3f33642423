"""Several processes on one root, and processes that are killed (FAULTS S3, S5, S8)."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Replacement
from kvcache_conformance.storage_kills import Hunt, Kills, kill_faulty_writers, kill_writers
from kvcache_conformance.storage_numbered import fill, largest_page, numbers_there, store_numbered
from kvcache_conformance.storage_processes import OtherProcess, StorageOpener
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file.session import Session
from kvcache_storage_file.shared_lock import SharedLock
from kvcache_storage_file.writer import Writer

SCOPE = StorageScope(model_id="model", page_size=16)


def opener(root, **options) -> StorageOpener:
    return StorageOpener("file", {"path": str(root.path), "min_free_bytes": 0} | options, SCOPE)


def hunt(root, wanted: int, most: int, seed: int = 6, keeps_all: bool = True) -> Hunt:
    return Hunt(str(root.path), ".kvcache/*/*.tmp", 2**18, wanted, most, seed, keeps_all)


def check_kills(root, kills: Kills, wanted: int) -> None:
    assert not kills.jax
    assert kills.with_temporary >= wanted, f"only {kills.with_temporary} of {kills.kills} kills hit a write: another seed?"
    assert kills.stored > 0
    assert (kills.wrong, kills.missing, kills.unswept) == ([], [], [])
    storage = root.open()
    assert root.temporaries() == []
    storage.check_integrity()


def test_a_writer_that_is_killed_leaves_no_wrong_page_and_loses_none_it_reported(root):
    check_kills(root, OtherProcess(kill_writers, opener(root), hunt(root, 20, 400)).result(), 20)


IN_PLACE = """draft = self._draft(session, item)
    with open(item.place.path, "wb", 0) as file:
        for start in range(0, len(item.value), 64):
            file.write(item.value[start : start + 64])"""


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (Replacement(Writer, "_write", "draft = self._draft(session, item)", IN_PLACE), "wrong"),
        (Replacement(Session, "__init__", "list(sweep(private))", "[]"), "unswept"),
    ],
    ids=["pages are written in their place", "the dead are not swept"],
)
def test_kills_notice_a_planted_fault(root, fault, found):
    """In a process of its own, as the kills are: a fault that is planted here would not be there."""
    kills = OtherProcess(kill_faulty_writers, opener(root), hunt(root, 5, 400), fault).result()
    assert getattr(kills, found)
    with pytest.raises(AssertionError):
        check_kills(root, kills, 5)


@pytest.mark.slow
def test_two_hundred_kills(root):
    for seed in range(10):
        check_kills(root, OtherProcess(kill_writers, opener(root), hunt(root, 20, 400, seed=seed)).result(), 20)


def test_killed_writers_do_not_exceed_the_limit(root):
    """What a killed process had claimed is given back, and no page it wrote is forgotten."""
    limit = 8 * largest_page(2**18)
    kills = OtherProcess(kill_writers, opener(root, max_bytes=limit), hunt(root, 8, 200, keeps_all=False)).result()
    check_kills(root, kills, 8)
    # Locks and books of the store itself are not pages.
    assert kills.largest <= limit + 16_384
    storage = root.open(max_bytes=limit)
    storage.check_integrity()
    assert root.bytes() <= limit


def measured(root) -> int:
    """Bytes of pages and of pages being written, at a moment in which nobody starts, moves or removes one."""
    lock = SharedLock(str(root.path / ".kvcache" / "lock"))
    try:
        with lock:
            return root.bytes() + sum(size_of(path) for path in root.temporaries())
    finally:
        lock.close()


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # a page that failed, or the folder of a process that has ended
        return 0


def test_two_processes_fill_a_root_to_three_times_its_limit_with_restarts_and_a_lower_limit(root):
    """FAULTS S5: the limit holds at every moment, the bytes being written included."""
    nbytes = 50_000
    limits = [40 * nbytes, 40 * nbytes, 15 * nbytes]
    root.open().close()
    highest = []
    pool = ThreadPoolExecutor(2)
    for session, limit in enumerate(limits):
        numbers = [range(1000 * session, 1000 * session + 60), range(1000 * session + 500, 1000 * session + 560)]
        options = opener(root, max_bytes=limit)
        both = [pool.submit(OtherProcess(fill, options, mine, nbytes).result) for mine in numbers]
        # Before the first of them has come with the lower limit, the root may be as full as the last limit let it be.
        allowed = max(limits[max(0, session - 1) : session + 1])
        while not all(process.done() for process in both):
            assert measured(root) <= allowed
        assert [process.result() for process in both] == [[], []]
        highest.append(measured(root))
        assert highest[-1] <= limit
    pool.shutdown()
    # It was full at the end of every session, not empty.
    assert all(high > limit - 2 * largest_page(nbytes) for high, limit in zip(highest, limits, strict=True))
    storage = root.open(max_bytes=limits[-1])
    storage.check_integrity()
    assert len(numbers_there(storage, [*range(2000, 2060), *range(2500, 2560)], nbytes)) >= 14


def test_two_processes_keep_the_floor_under_the_free_space(small_disk):
    """FAULTS S2, S8: neither knows what the other is writing at the moment, so the floor may be short of that, and no more."""
    nbytes, floor = 100_000, 3 * 2**20
    root = small_disk(8 * 2**20)
    storage = root.open(min_free_bytes=floor)
    options = opener(root, min_free_bytes=floor, workers=1)
    pool = ThreadPoolExecutor(2)
    both = [pool.submit(OtherProcess(fill, options, mine, nbytes).result) for mine in (range(200), range(1000, 1200))]
    while not all(process.done() for process in both):
        assert free(root.path) >= floor - 2 * largest_page(nbytes)
    pool.shutdown()
    assert [process.result() for process in both] == [[], []]
    assert floor - 2 * largest_page(nbytes) <= free(root.path) < floor + 6 * largest_page(nbytes)
    # The next page makes up for it.
    store_numbered(storage, range(2000, 2003), nbytes)
    assert free(root.path) >= floor
    assert numbers_there(storage, [*range(150, 200), *range(1150, 1200)], nbytes)
    storage.check_integrity()


def free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def test_two_processes_write_read_and_evict_the_same_pages(root):
    """FAULTS S8: more evictions than pages, the same keys on both sides, and every page that is read is right."""
    nbytes = 20_000
    options = opener(root, max_bytes=10 * nbytes)
    numbers = [*range(40), *range(40), *range(40)]
    both = [OtherProcess(fill, options, mine, nbytes) for mine in (numbers, numbers[::-1])]
    assert [process.result() for process in both] == [[], []]
    storage = root.open(max_bytes=10 * nbytes)
    storage.check_integrity()
    assert numbers_there(storage, range(40), nbytes)
    assert root.temporaries() == []
    assert root.bytes() <= 10 * nbytes


def test_a_process_without_a_limit_keeps_books_for_one_that_has(root):
    nbytes = 20_000
    limit = 10 * largest_page(nbytes)
    limited = root.open(max_bytes=limit)
    assert OtherProcess(fill, opener(root), range(8), nbytes).result() == []
    limited.check_integrity()
    fill(opener(root, max_bytes=limit), range(100, 106), nbytes)
    assert root.bytes() <= limit
    # The oldest went: they count although another process has written them.
    assert numbers_there(limited, range(8), nbytes) == [4, 5, 6, 7]
