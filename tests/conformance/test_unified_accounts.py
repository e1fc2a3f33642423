"""Who owns what in two tiers, in every state a page can be in, and what happens when nothing is to be had. One directed test
each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents after each; a test asserts what is special to it.
"""

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, RECURRENT
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.locks import Refused
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.loads import Loads


def sizes(world):
    """(free, evictable, protected, in flight, request owned, total) of both tiers; each sums up, as `verify` sees."""
    world.verify()
    return tuple(world.cache.size("full")), tuple(world.cache.size("full", "host"))


def test_every_page_is_counted_once_in_every_state(tiered):
    """L1: absent, D+w, DH, H, locked H, H+l, DH locked, and back."""
    world = tiered(TierSizes(PAGE, 8, 8, "insert"))
    world.script.hold_back()
    compute(world, ids(1, 2))
    assert sizes(world) == ((6, 2, 0, 0, 0, 8), (6, 0, 0, 2, 0, 8))
    world.settle()
    assert sizes(world) == ((6, 2, 0, 0, 0, 8), (6, 2, 0, 0, 0, 8))
    evict(world)
    assert sizes(world) == ((8, 0, 0, 0, 0, 8), (6, 2, 0, 0, 0, 8))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    mine = world.checked.alloc("full", 3)
    assert sizes(world) == ((3, 0, 0, 2, 3, 8), (6, 0, 2, 0, 0, 8))
    world.settle()
    assert sizes(world) == ((3, 0, 2, 0, 3, 8), (6, 2, 0, 0, 0, 8))
    held = world.claim(started)
    world.checked.unlock(held)
    world.checked.free("full", mine)
    assert sizes(world) == ((6, 2, 0, 0, 0, 8), (6, 2, 0, 0, 0, 8))
    world.evict_host("full", 1)
    assert sizes(world) == ((6, 2, 0, 0, 0, 8), (7, 1, 0, 0, 0, 8))
    finish(world)


def test_with_everything_pinned_an_eviction_ends(tiered, monkeypatch):
    """L9: it looks once more than there are victims."""
    asked = []
    victim = RadixTree.victim

    def counted(*args, **options):
        asked.append(args)
        assert len(asked) < 20, "it looks for victims again and again"
        return victim(*args, **options)

    monkeypatch.setattr(RadixTree, "victim", counted)
    world = tiered(TierSizes(PAGE, 4, 2, "insert"))
    compute(world, ids(1, 2, 3, 4))
    held = world.checked.lock(find(world, ids(1, 2, 3, 4)))
    asked.clear()
    assert world.checked.evict("full", 3) == 0
    assert len(asked) == 1
    world.checked.unlock(held)
    finish(world)


def test_a_load_into_a_pinned_device_fails_at_once(tiered):
    """L9: nothing is evicted, allocated or copied for a load that cannot be."""
    world = tiered(TierSizes(PAGE, 4, 8, "insert"))
    in_host(world, ids(1, 2))
    compute(world, ids(5, 6, 7))
    world.settle()
    held = world.checked.lock(find(world, ids(5, 6, 7)))
    mine = world.checked.alloc("full", 1)
    before = sizes(world)
    assert world.load(find(world, ids(1, 2))) is Refused.NO_ROOM
    assert sizes(world) == before
    assert world.script.quiet
    world.checked.free("full", mine)
    world.checked.unlock(held)
    finish(world)


def test_a_copy_into_a_pinned_host_is_skipped_at_once(tiered):
    """L9: slots that a load reads from, and that are nowhere else, are no victims; the copy is skipped, and counted."""
    world = tiered(TierSizes(PAGE, 8, 2, "insert"))
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    before = world.cache.counters.postponed["no room in L2"]
    compute(world, ids(3, 4))
    assert world.cache.counters.postponed["no room in L2"] == before + 8
    assert not world.script.pending["write"]
    world.settle()
    world.cancel(started)
    finish(world)


def test_a_state_is_a_snapshot(tiered):
    """B6: the request that offered a state goes on; what the cache has stays the state at the page boundary, in both tiers."""
    world = tiered(TierSizes(PAGE, 16, 32, "insert"), (FULL, RECURRENT))
    request = RequestModel(world.checked, ids(1, 2))
    assert request.admit()
    assert request.compute(8)
    request.chunk_done()
    for token in range(3):
        request.append(token)
        assert request.compute(1)
        world.verify()
    held = world.checked.lock(find(world, ids(1, 2)))
    assert held.length == 8
    world.checked.unlock(held)
    request.finish()
    world.settle()
    for name in ("recurrent", "full"):
        evict(world, name)
    started = load(world, ids(1, 2))
    world.settle()
    held = world.claim(started)
    assert held is not None
    world.checked.unlock(held)
    finish(world)


class TestFaultsOfAccounts(PlantedFaultTests):
    faults = (
        Fault(
            "L1: what loads own counts as the requests'",
            test_every_page_is_counted_once_in_every_state,
            Replacement(UnifiedRadixCache, "size", "0 if self._host is None else self._host.loads.in_flight[c]", "0"),
        ),
        Fault(
            "L1: what copies out own has no owner",
            test_every_page_is_counted_once_in_every_state,
            Replacement(Backups, "start", "self.in_flight[c] += n", "pass"),
        ),
        Fault(
            "L1: a load that ended still owns its pages",
            test_every_page_is_counted_once_in_every_state,
            Replacement(Loads, "_end", "self.in_flight[operation.c] -= len(operation.destination)", "pass"),
        ),
        Fault(
            "L9: an eviction never gives up",
            test_with_everything_pinned_an_eviction_ends,
            Replacement(UnifiedRadixCache, "evict", "break", "continue"),
        ),
        Fault(
            "L1: a refused load keeps its lock",
            test_a_load_into_a_pinned_device_fails_at_once,
            Replacement(UnifiedRadixCache, "load", "lock.length:\n        tree.unlock(lock)", "lock.length:\n        pass"),
        ),
        Fault(
            "L9: a skipped copy is not counted",
            test_a_copy_into_a_pinned_host_is_skipped_at_once,
            Replacement(Backups, "_skip", "counter[reason] += self._tokens(node, c)", "pass"),
        ),
        Fault(
            "B6: the running state is offered",
            test_a_state_is_a_snapshot,
            Replacement(RequestModel, "_snapshot", "slots = self._alloc(name, 1)", "slots = [self._running[name]]"),
        ),
    )
