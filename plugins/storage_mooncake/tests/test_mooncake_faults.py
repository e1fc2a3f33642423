"""What would end or hang the process is an error in time: no master, one that hangs or dies, a holder that dies, a full store,
a closed one, a fork."""

import socket
import threading
from dataclasses import replace

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_bench import content, expect_get, expect_pages, new_keys
from kvcache_conformance.storage_outages import LONG, check_fork_is_refused, every_call, until
from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.storage import NotAllStoredError, StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_mooncake import opening
from kvcache_storage_mooncake.client import MooncakeClient
from kvcache_storage_mooncake.config import MooncakeOptions
from kvcache_storage_mooncake.storage import MooncakeStorage

SCOPE = StorageScope(model_id="model", page_size=16)


def test_a_closed_port():
    with socket.socket() as bound:  # bound and not listening: nobody else gets it meanwhile
        bound.bind(("127.0.0.1", 0))
        options = MooncakeOptions(master=f"127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(StorageError, match="Connection refused") as caught:
            opening.make(options, SCOPE)
    assert caught.value.path == ("hicache", "storage")
    assert options.master in str(caught.value)


@pytest.mark.parametrize("said", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["nothing", "closes", "another protocol"])
def test_something_else_behind_the_port(said):
    """The library would try it for most of a minute."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def answer():
            way, _ = listening.accept()
            with way:
                way.recv(100)
                way.sendall(said or b"")

        if said is not None:
            threading.Thread(target=answer, daemon=True).start()
        options = MooncakeOptions(master=f"127.0.0.1:{listening.getsockname()[1]}", connect_timeout=1.0)
        with pytest.raises(StorageError, match="did not answer" if said is None else "is no mooncake_master"):
            opening.make(options, SCOPE)


def test_a_master_that_hangs_at_the_start(own_store):
    own_store.master.pause()
    with pytest.raises(StorageError, match="did not answer"):
        own_store.open(connect_timeout=0.5)
    own_store.master.resume()


def test_one_who_looks_changes_nothing(store):
    storage, keys = store.open(), new_keys(2)
    storage.set(keys[:1], [content(100)])
    looking = store.open(replace(SCOPE, read_only=True))
    for change in (lambda: looking.set(keys[1:], [b""]), lambda: looking.delete(keys[:1])):
        with pytest.raises(OSError, match="read only"):
            change()
    expect_pages(looking, keys, [content(100), None])


def test_pages_of_any_size_up_to_the_buffer(store):
    """Larger batches than the buffer go through it in parts; pages that turn out larger than those before are read once more."""
    storage, keys = store.open(buffer_bytes=2**20), new_keys(8)
    values = [content(size) for size in (1, 2**20 - 16, 100_000, 0, 600_000, 600_000, 17, 300_000)]
    storage.set(keys, values)
    expect_get(storage, keys, values)
    fresh = store.open(buffer_bytes=2**20)
    expect_get(fresh, keys * 2, values * 2)
    more = new_keys(2)
    with pytest.raises(NotAllStoredError, match=r"1 of 2 pages were not stored: .*buffer_bytes") as caught:
        storage.set(more, [content(2**20 - 15), b"the other one is stored"])
    assert caught.value.missing == {more[0]}
    with pytest.raises(OSError, match="buffer_bytes"):
        storage.set(more[:1], [content(2**20 - 15)])
    expect_pages(storage, more, [None, b"the other one is stored"])
    # A page that fits into no buffer here is none.
    store.open(buffer_bytes=2**22).set(more[:1], [content(2**21)])
    expect_get(storage, [*more, keys[0]], [None, b"the other one is stored", values[0]])


def test_what_is_not_whole_is_absent(store):
    """As a reader may see it that another one overwrites under."""
    storage, (good, bad) = store.open(), new_keys(2)
    storage.set([good, bad], [content(1000), content(1000)])
    client = storage._client
    with storage._lane.turn(LONG) as turn:
        sizes = client.load([content(1000, 1)])
        client._view[500] ^= 1
        assert turn.call(lambda: client.put([store.prefix + bad], sizes, [0])) == [0]
    expect_get(storage, [good, bad], [content(1000), None])
    storage.set([bad], [content(5)])
    expect_pages(storage, [good, bad], [content(1000), content(5)])


def test_a_full_store_makes_room_and_no_page_is_wrong(own_store):
    """Three times what its holder has."""
    storage = own_store.open()
    keys = new_keys(200)
    refused = 0
    for number, key in enumerate(keys):
        try:
            storage.set([key], [content(2**20, number)])
        except OSError:
            refused += 1
    found = storage.get(keys)
    assert all(value in (None, content(2**20, number)) for number, value in enumerate(found))
    assert 10 <= sum(value is not None for value in found) <= 64
    assert refused < 10


def test_a_master_that_hangs_is_an_error_in_time_and_is_found_again(own_store):
    storage, keys = own_store.open(timeout=1.0), new_keys(2)
    storage.set(keys, [content(1000), content(7)])
    own_store.master.pause()
    for call in every_call(storage, keys):
        with pytest.raises(TimeoutError):
            call()
    own_store.master.resume()
    until(lambda: storage.set(keys, [content(10), content(20)]) is None)
    expect_pages(storage, keys, [content(10), content(20)])


def test_a_master_that_is_killed_is_no_empty_store_and_comes_back_empty(own_store):
    storage, keys = own_store.open(timeout=1.0), new_keys(2)
    storage.set(keys, [content(1000), content(7)])
    own_store.master.kill()
    for call in every_call(storage, keys):
        with pytest.raises(OSError, match=r"answer|reached|earlier"):
            call()
    own_store.master.start()
    until(lambda: storage.get(keys) == [None, None])
    until(lambda: storage.set(keys, [content(10), content(20)]) is None)
    expect_pages(storage, keys, [content(10), content(20)])


def test_a_holder_that_is_killed_takes_its_pages_along_and_no_others(own_store):
    mine, keys = own_store.open(segment_bytes=2**24), new_keys(20)
    values = [content(10_000, number) for number in range(20)]
    mine.set(keys, values)
    own_store.holder.kill()
    try:
        found = mine.get(keys)
    except OSError as error:
        pytest.fail(f"what others hold was not read: {error}")
    assert all(value in (None, right) for value, right in zip(found, values, strict=True))
    assert 0 < found.count(None) < 20
    own_store.holder.start()

    def stored() -> bool:
        """Pages that go to the one that is gone fail, until the master has noticed."""
        missing: frozenset[str] = frozenset()
        try:
            mine.set(keys, values)
        except NotAllStoredError as error:
            missing = error.missing
        found = mine.get(keys)
        assert all(value == right or key in missing for key, value, right in zip(keys, found, values, strict=True))
        return not missing

    until(stored)
    until(lambda: mine.get(keys) == values)


def test_a_closed_store_says_so_also_while_others_call(store):
    """In the library, a call after closing would end the process."""
    storage, keys = store.open(), new_keys(1)
    errors = []

    def ask():
        try:
            while True:
                storage.exists(keys)
        except ValueError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        storage.close()
    for thread in threads:
        thread.join(LONG)
    assert errors == ["this storage is closed"] * 4
    for call in every_call(storage, keys):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_the_child_of_a_fork_is_told_and_the_parent_goes_on(store):
    check_fork_is_refused(StorageOpener("mooncake", store.options(), SCOPE))


class TestFaults(PlantedFaultTests):
    faults = (
        Fault(
            "half a page is a page",
            test_what_is_not_whole_is_absent,
            Replacement(MooncakeClient, "_page", "xxhash.xxh3_64_intdigest(page) == checksum", "True"),
        ),
        Fault(
            "a master that is gone is an empty store",
            test_a_master_that_is_killed_is_no_empty_store_and_comes_back_empty,
            Replacement(MooncakeStorage, "get", "if not any(value is not None for value in found.values()):", "if False:"),
        ),
        Fault(
            "one holder's pages are an error of all",
            test_a_holder_that_is_killed_takes_its_pages_along_and_no_others,
            Replacement(MooncakeStorage, "get", "if not any(value is not None for value in found.values()):", "if True:"),
        ),
        Fault(
            "a store that makes room is full",
            test_a_full_store_makes_room_and_no_page_is_wrong,
            Replacement(MooncakeStorage, "_put", "patient and code in TRY_AGAIN", "False"),
        ),
    )
