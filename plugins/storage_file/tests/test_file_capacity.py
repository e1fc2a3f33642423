"""The limit: what is kept under it, and what cannot be removed (FAULTS S5, S6)."""

import os

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import expect_stored, largest_page, numbered_key, numbers_there, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file.room import Room
from kvcache_storage_file.root import Root

NBYTES = 1000
LIMIT = 10 * largest_page(NBYTES)


def test_pages_of_all_models_and_page_sizes_share_the_limit(root):
    scopes = [StorageScope("one", 16), StorageScope("two", 16), StorageScope("one", 64)]
    storages = [root.open(scope, max_bytes=LIMIT) for scope in scopes]
    for number in range(30):
        store_numbered(storages[number % 3], [number], NBYTES)
        assert root.bytes() <= LIMIT
    assert [numbers_there(storage, range(at, 30, 3), NBYTES)[-1] for at, storage in enumerate(storages)] == [27, 28, 29]
    for storage in storages:
        storage.check_integrity()


def test_a_lower_limit_holds_when_the_root_is_open(root):
    storage = root.open()
    store_numbered(storage, range(40), NBYTES)
    storage.close()
    storage = root.open(max_bytes=LIMIT)
    assert LIMIT - 2 * NBYTES < root.bytes() <= LIMIT
    left = numbers_there(storage, range(40), NBYTES)
    assert left == list(range(40 - len(left), 40))
    storage.check_integrity()


def test_a_page_above_the_limit_is_refused_and_removes_nothing(root):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(5), NBYTES)
    with pytest.raises(OSError, match="larger than max_bytes"):
        storage.set([numbered_key(99)], [b"x" * (LIMIT + 1)])
    assert numbers_there(storage, range(5), NBYTES) == list(range(5))
    storage.check_integrity()


def test_a_victim_that_cannot_be_removed_stops_neither_others_nor_writes(root, monkeypatch):
    """FAULTS S6. The oldest page stays, whatever is tried."""
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    stuck = str(root.file(0))
    unlink = os.unlink

    def refuse(path, *args, **kwargs):
        if os.fspath(path) == stuck:
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", refuse)
    expect_stored(storage, range(100, 120), NBYTES)
    left = numbers_there(storage, [*range(10), *range(100, 120)], NBYTES)
    assert left[0] == 0
    assert left[1:] == list(range(121 - len(left), 120))
    assert root.bytes() <= LIMIT
    with pytest.raises(PermissionError):
        storage.delete([numbered_key(0), numbered_key(119)])
    assert storage.exists([numbered_key(119)]) == [False]
    storage.check_integrity()


def test_nothing_but_pages_that_stay_is_an_error_and_not_an_endless_search(root, monkeypatch):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    before = root.bytes()

    def refuse(path, *_args, **_kwargs):
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(OSError, match="no page can be removed"):
            store_numbered(storage, [100], 2 * NBYTES)
    assert root.bytes() == before
    storage.check_integrity()


class TestFaultsOfTheLimit(PlantedFaultTests):
    faults = (
        Fault(
            "a lower limit waits for a write",
            test_a_lower_limit_holds_when_the_root_is_open,
            Replacement(Room, "count", "excess := self._ledger.excess()", "excess := 0"),
        ),
        Fault(
            "the search ends at a page that stays",
            test_a_victim_that_cannot_be_removed_stops_neither_others_nor_writes,
            Replacement(Room, "remove", "self._victims.set_aside(page)", "return freed"),
        ),
        Fault(
            "a page that is too large empties the root",
            test_a_page_above_the_limit_is_refused_and_removes_nothing,
            Replacement(Root, "mend", "isinstance(error, NoRoomError)", "False"),
        ),
    )
