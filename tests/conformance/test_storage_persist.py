"""Traps of the end of a cache with storage (T25, P5): `persist` and `close`, one directed test each, and their faults."""

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import compute, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import ROOM, host_len, is_stored, prefetch
from kvcache_conformance.tier_steps import TierSizes
from kvcache_radix.integrity import nodes_of
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.leftovers import Leftovers


def test_what_is_only_in_memory_is_stored_at_the_end(stored):
    """T25; with an L2 smaller than the request, and one of a single page (P5)."""
    for slots in (64, 3, 1):
        world = stored(TierSizes(PAGE, 16, slots, "evict", "evict"), StorageScript())
        compute(world, ids(1, 2, 3, 4, 5))
        world.cache.close()
        assert all(is_stored(world, "full", ids(*range(1, n + 1))) for n in range(1, 6)), slots
        assert world.stored.script.closed == 1
        world.cache.close()
        assert world.stored.script.closed == 1


@pytest.mark.parametrize("deadline", [0.0, 5.0])
def test_what_is_cut_while_room_is_made_is_stored_or_reported(stored, deadline):
    """The copy of the second prompt takes a page of the first, which is cut for it before the storage has taken it: its upper
    part is a node of its own then, and is as much a leftover."""
    world = stored(TierSizes(PAGE, 16, 3, "insert", "evict"), StorageScript())
    compute(world, ids(1, 2))
    world.settle()
    world.script.congested = True
    compute(world, ids(5, 6))
    world.script.congested = False
    report = world.persist(deadline)
    assert report.remaining + report.stored == 4 and bool(report.remaining) == (not deadline), report
    assert len(list(nodes_of(world.cache._tree.store))) > 2, "nothing was cut"
    assert deadline == 0.0 or all(is_stored(world, "full", ids(*pages)) for pages in ((1,), (1, 2), (5,), (5, 6)))


def test_close_after_persist_does_not_begin_again(stored):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))
    world.stored.script.refusing = True
    report = world.persist(0.0)
    assert report.remaining == 2
    world.stored.script.let_all_through()
    world.cache.close()
    assert not is_stored(world, "full", ids(1, 2))


def test_close_ends_threads_whatever_fails_before(stored, monkeypatch):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))

    def broken(self, deadline):
        raise RuntimeError("planted")

    monkeypatch.setattr(Leftovers, "persist", broken)
    with pytest.raises(RuntimeError, match="planted"):
        world.cache.close()
    assert world.stored.script.closed == world.script.closed == 1


def test_an_unavailable_storage_ends_persist_at_once(stored):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))
    world.settle()
    world.stored.script.refusing, world.stored.script.word = True, "open"
    report = world.cache.persist(3600.0)
    assert report.dropped == {"the storage is unavailable": 2} and "planted" in report.message


def test_a_storage_that_is_only_read(stored, caplog):
    storage = StorageScript()
    compute(first := stored(ROOM, storage), ids(1, 2))
    first.cache.close()
    with caplog.at_level("WARNING"):
        world = stored(ROOM._replace(persist_on="never"), storage)
    assert "only read" in caplog.text
    prefetch(world, ids(1, 2, 3))
    world.settle()
    assert host_len(world, ids(1, 2)) == 8
    compute(world, ids(5, 6))
    world.settle()
    world.evict_host("full", 64)
    assert "nothing was written" in world.persist(1.0).message
    world.cache.close()
    assert not is_stored(world, "full", ids(5))


class TestFaultsOfPersist(PlantedFaultTests):
    faults = (
        Fault(
            "P5: what is cut off has no turn and is in no report",
            lambda stored: test_what_is_cut_while_room_is_made_is_stored_or_reported(stored, 0.0),
            Replacement(Leftovers, "_cut_off", "in self._unstored() if", "in () if"),
        ),
        Fault(
            "T25: close persists nothing",
            test_what_is_only_in_memory_is_stored_at_the_end,
            Replacement(UnifiedRadixCache, "close", "if not self._persisted:", "if False:"),
        ),
        Fault(
            "T25: persist forgets what only L1 has",
            test_what_is_only_in_memory_is_stored_at_the_end,
            Replacement(Leftovers, "_copy", "self._backups.start(node, c)", "False"),
        ),
        Fault(
            "P5: a node larger than L2 is given up",
            test_what_is_only_in_memory_is_stored_at_the_end,
            Replacement(Leftovers, "_pieces", "node.end - node.start > most", "False"),
        ),
    )
