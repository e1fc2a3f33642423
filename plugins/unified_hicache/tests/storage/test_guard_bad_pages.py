"""Pages that a backend gives and that are none: a miss, removed, counted, repaired by the next write, and told in this order."""

import pytest

from kvcache_conformance.backend_tricks import flipped, gives, raises
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.pools import PageArray
from kvcache_unified_hicache.storage.fetch_operation import _Get
from kvcache_unified_hicache.storage.guard import StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame

BAD_PAGES = {
    "flipped byte": (flipped, "checksum"),
    "truncated": (lambda value: value[:-1], "not a page"),
    "trailing junk": (lambda value: value + b"x", "not a page"),
    "empty": (lambda value: b"", "length"),
    "zeros": (lambda value: bytes(len(value)), "not a page"),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD_PAGES.values(), ids=BAD_PAGES)
def test_a_bad_page_is_a_miss_removed_and_repaired(guarded, spoil, reason):
    """B1: the others of its batch are delivered; the next write repairs it."""
    world = guarded()
    world.hold(range(3))
    world.backend.pages[world.key(1)] = spoil(world.backend.pages[world.key(1)])
    assert world.fetch(range(3)) == [world.payload(0), None, world.payload(2)]
    assert world.counters.misses == {f"bad page: {reason}": 1}
    assert world.key(1) not in world.backend.pages
    assert world.observer.removed == [world.key(1)]
    assert world.store([1]) == [True]
    assert world.fetch([1]) == [world.payload(1)]


def test_pages_of_another_frame_are_bad(guarded):
    """B1: another shape with the same size, whole and under the right key."""
    world = guarded()
    other = PageFrame((PageArray("k", "bfloat16", (12,)), PageArray("v", "uint8", (8,))))
    assert other.payload_bytes == world.frame.payload_bytes
    value = other.new_value()
    other.seal(world.key(1), value)
    world.backend.pages[world.key(1)] = bytes(value)
    assert world.fetch([1]) == [None]
    assert world.counters.misses == {"bad page: other arrays": 1}


def test_answers_in_another_order_are_never_served(guarded):
    """B2: the bytes are whole pages; only the key in the checksum tells them apart."""
    world = guarded()
    world.hold(range(3))
    world.backend.tricks["get"] = gives(lambda values: values[::-1])
    assert world.fetch(range(3)) == [None, world.payload(1), None]
    assert world.counters.misses == {"bad page: checksum": 2}


def test_a_page_that_was_promised_and_is_gone_is_a_miss(guarded):
    """B2."""
    world = guarded()
    world.hold([1, 2])
    assert world.exists([1, 2]) == [True, True]
    del world.backend.pages[world.key(1)]
    assert world.fetch([1, 2]) == [None, world.payload(2)]
    assert world.counters.misses == {"page gone": 1}
    assert world.backend.called("delete") == []


def test_a_miss_is_told_once_the_bad_page_is_removed(guarded):
    """Who hears of it computes and stores the page anew, and a late removal would take that one."""
    world = guarded()
    world.hold([1])
    world.backend.pages[world.key(1)] = b"junk"
    world.backend.tricks["delete"] = world.backend.hang
    assert world.start_fetch([1])
    world.guard.wait(60)
    world.guard.poll()
    world.backend.wait_until_hanging()
    for _ in range(5):  # unpacking has ended long before the last of these
        world.guard.wait(0.02)
        world.guard.poll()
    assert world.answers == []
    world.backend.released.set()
    assert world.settle() == [[None]]


def test_a_bad_page_that_cannot_be_deleted_harms_nothing(guarded):
    world = guarded()
    world.hold([1, 2])
    world.backend.pages[world.key(1)] = b"junk"
    world.backend.tricks["delete"] = raises(PermissionError("no"))
    assert world.fetch([1, 2]) == [None, world.payload(2)]
    assert world.observer.removed == []
    assert world.counters.storage_state == "failing: write: PermissionError: no"
    assert world.fetch([1, 2]) == [None, world.payload(2)]


def bad_pages_are_removed(guarded):
    test_a_bad_page_is_a_miss_removed_and_repaired(guarded, flipped, "checksum")


def test_where_nothing_may_be_written_a_bad_page_stays(guarded, caplog):
    """And the storage is none the worse for it."""
    world = guarded(read_only=True)
    world.hold(range(2))
    spoilt = world.backend.pages[world.key(1)] = flipped(world.backend.pages[world.key(1)])
    for _ in range(4):
        assert world.fetch(range(2)) == [world.payload(0), None]
    assert world.backend.pages.get(world.key(1)) == spoilt and world.backend.called("delete") == []
    assert world.counters.misses == {"bad page: checksum": 4} and world.counters.storage_state == "ok"
    assert not world.observer.removed and not caplog.records


class TestFaultsOfBadPages(PlantedFaultTests):
    faults = (
        Fault(
            "removed where nothing may be",
            test_where_nothing_may_be_written_a_bad_page_stays,
            Replacement(StorageGuard, "_account", "and not self._settings.read_only", ""),
        ),
        Fault(
            "bad pages stay",
            bad_pages_are_removed,
            Replacement(_Get, "account", "return [key for key, _ in read.bad]", "return []"),
        ),
        Fault(
            "told before the removal",
            test_a_miss_is_told_once_the_bad_page_is_removed,
            Replacement(StorageGuard, "_finish", "or operation in self._removals.values()", ""),
        ),
        Fault(
            "pages are not verified",
            test_answers_in_another_order_are_never_served,
            Replacement(
                _Get,
                "_read_values",
                "self._fetch.frame.open(key, value)",
                "memoryview(value)[128 : 128 + self._fetch.frame.payload_bytes]",
            ),
        ),
    )
