"""Traps of loads from the host (L2 -> L1), one directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents after each; a test asserts what is special to it.
"""

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_conformance.transfer_script import ScriptedController
from kvcache_core.contracts.locks import Refused
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.load_planning import LoadPlanning
from kvcache_unified_hicache.loads import Loads
from kvcache_unified_hicache.operation import Operation
from kvcache_unified_hicache.ticket import LoadTicket


def test_a_load_that_joins_one_that_fails(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2), ids(1, 2, 3, 4))
    world.script.fates.extend([False, True])
    first, second = load(world, ids(1, 2)), load(world, ids(1, 2, 3, 4))
    assert len(second.joined) == len(second.own) == 1
    world.settle()
    assert second.ticket.done
    assert not claim(world, first)
    assert not claim(world, second)
    assert find(world, ids(1, 2, 3, 4)).result[1:3] == (0, 16)
    assert world.cache.counters.misses == {"copy to L1 failed": 1}
    finish(world)


def test_a_load_whose_victims_want_the_slots_it_reads(tiered):
    world = tiered(TierSizes(PAGE, 4, 3, "evict"))
    in_host(world, ids(1, 2))
    compute(world, ids(5, 6, 7, 8))
    started = load(world, ids(1, 2))
    world.settle()
    assert claim(world, started)
    assert world.cache.counters.dropped
    finish(world)


def test_two_loads_over_one_prefix(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2, 3))
    first, second = load(world, ids(1, 2, 3)), load(world, ids(1, 2))
    assert (len(second.own), len(second.joined)) == (0, 1)
    world.cancel(first)
    assert not second.ticket.done
    world.settle()
    assert claim(world, second)
    assert find(world, ids(1, 2, 3)).result.device_len == 12
    finish(world)


def test_a_cancelled_load_whose_start_went(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1), ids(1, 2))
    compute(world, ids(1))
    world.settle()
    started = load(world, ids(1, 2))
    world.host.idle()
    world.cancel(started)
    evict(world)
    world.settle()
    assert find(world, ids(1, 2)).result[1:3] == (0, 8)
    finish(world)


def test_a_load_with_a_match_that_went_stale(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    match = find(world, ids(1, 2))
    world.evict_host("full", 1)
    assert world.load(match) is Refused.STALE
    compute(world, ids(1, 2))
    match = find(world, ids(1, 2))
    world.settle()
    evict(world)
    assert world.checked.lock(match) is None
    finish(world)


def test_a_load_larger_than_the_device(tiered):
    world = tiered(TierSizes(PAGE, 4, 64, "insert"))
    in_host(world, ids(1, 2))
    in_host(world, ids(5))
    compute(world, ids(5))
    taken = world.checked.alloc("full", 3)
    held = world.checked.lock(find(world, ids(5)))
    assert world.load(find(world, ids(1, 2))) is Refused.NO_ROOM
    world.checked.unlock(held)
    # What could be had by evicting is had, but no more than helps.
    started = load(world, ids(1, 2))
    assert started.held.length == 4
    world.cancel(started)
    assert world.cache.counters.misses == {"no room in L1 for what L2 has": 1}, "what nobody wants any more is no miss"
    world.checked.free("full", taken)
    finish(world)


def test_a_load_of_nothing(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    assert world.load(find(world, ids(1))) is Refused.NOTHING_TO_DO
    compute(world, ids(1))
    assert world.load(find(world, ids(1))) is Refused.NOTHING_TO_DO
    finish(world)


def test_the_same_tokens_again_under_a_load(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    compute(world, ids(1, 2))
    world.settle()
    assert claim(world, started)
    finish(world)


def test_a_load_whose_victims_cut_what_it_brings(tiered):
    """T13: read the node again after an allocation that may evict. The window behind the loaded one is not locked."""
    world = tiered(TierSizes(PAGE, 6, 5, "evict"), (FULL, SWA))
    compute(world, ids(1, 2))
    in_host(world, ids(1, 2, 3, 4))
    assert len(world.ledger.claims.resident["swa"]) == 4
    compute(world, ids(5, 6, 7, 8))
    started = load(world, ids(1, 2, 3, 4))
    assert len(world.ledger.claims.resident["swa"]) == 3
    world.settle()
    assert claim(world, started)
    finish(world)


def test_a_load_that_ends_after_its_place_was_given_to_a_write(tiered):
    """B5: the request was aborted, its tokens were computed and evicted again, and a copy of those is on its way to the host when
    the load ends."""
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    world.host.idle()
    world.cancel(started)
    world.evict_host("full", 2)
    compute(world, ids(1, 2))
    evict(world)
    assert [len(world.script.pending[direction]) for direction in ("load", "write")] == [1, 1]
    world.script.allowed["load"] = None
    world.turn()
    world.verify()
    assert find(world, ids(1, 2)).result[1:3] == (0, 0)
    assert world.ledger.events["late load thrown away"] == 2
    world.settle()
    assert find(world, ids(1, 2)).result[1:3] == (0, 8)
    finish(world)


def test_a_load_that_ends_after_its_request_was_aborted(tiered):
    """B5: others computed the tokens meanwhile; its pages are of no use and come free, once."""
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    world.host.idle()
    world.cancel(started)
    compute(world, ids(1, 2, 3))
    assert world.cache.size("full") == (11, 3, 0, 2, 0, 16)
    world.settle()
    assert world.cache.size("full") == (13, 3, 0, 0, 0, 16)
    assert world.ledger.events["late load thrown away"] == 2
    finish(world)


def test_a_load_above_one_that_runs_is_cut_to_what_fits(tiered):
    """A node whose load runs without a lock, below one that was evicted: a second load brings what fits of the upper one."""
    world = tiered(TierSizes(PAGE, 8, 64, "insert"))
    in_host(world, ids(1, 2, 3, 4), ids(1, 2, 3, 4, 5, 6))
    compute(world, ids(1, 2, 3, 4))
    world.settle()
    started = load(world, ids(1, 2, 3, 4, 5, 6))
    world.host.idle()
    world.script.hold_back()
    world.cancel(started)
    evict(world)
    taken = world.checked.alloc("full", 3)
    again = load(world, ids(1, 2, 3, 4, 5, 6))
    assert again.held.length == 12
    world.settle()
    assert claim(world, again)
    world.checked.free("full", taken)
    finish(world)


def test_a_load_whose_source_cannot_be_captured_is_refused(tiered, monkeypatch):
    """No fault of L2 ends a request: what cannot be had is computed. A pool that copies in `get` may find no memory for it."""
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    match = find(world, ids(1, 2))
    before = world.cache.size("full"), world.cache.size("full", "host")
    with monkeypatch.context() as inside:

        def no_memory(*args):
            raise MemoryError

        inside.setattr(ScriptedController, "load", no_memory)
        assert isinstance(world.cache.load(match.result), Refused)
    assert (world.cache.size("full"), world.cache.size("full", "host")) == before
    assert world.cache.counters.misses == {"a load from L2 could not start": 1}
    finish(world)


def host_victims_ignore_locks(monkeypatch):
    def unlocked(node, cell):
        return cell.host is not None and (cell.device is not None or not cell.host_kids)

    candidates = (NodeStore.__init__.__globals__["_CANDIDATE"][0], (unlocked, unlocked))
    # The account of what is evictable would already keep it from asking: without that, too.
    Replacement(HostTier, "alloc", "if n > self.obtainable(c):", "if False:")(monkeypatch)
    monkeypatch.setitem(NodeStore.__init__.__globals__, "_CANDIDATE", candidates)


class TestFaultsOfLoads(PlantedFaultTests):
    faults = (
        Fault(
            "P4: a load takes only what is free",
            test_a_load_whose_victims_want_the_slots_it_reads,
            Replacement(LoadPlanning, "_alloc", "self._evict(self._components[c].name, n - allocator.n_free)", "pass"),
        ),
        Fault(
            "T1: ok is what the copies said",
            test_a_load_that_joins_one_that_fails,
            Replacement(LoadTicket, "ok", "and self._usable(self._lock)", ""),
        ),
        Fault(
            "T8: loads do not join",
            test_two_loads_over_one_prefix,
            Replacement(Loads, "needs", "if loading is None:", "if True:"),
        ),
        Fault(
            "T8: who leaves first ends it for all",
            test_two_loads_over_one_prefix,
            Replacement(Loads, "leave", "if not loading.interest and", "if"),
        ),
        Fault(
            "T11: closure is not checked at the commit",
            test_a_cancelled_load_whose_start_went,
            Replacement(Loads, "_commit", "if ok and closed and", "if ok and"),
        ),
        Fault(
            "T14: lock_ref trusts the match",
            test_a_load_with_a_match_that_went_stale,
            Replacement(RadixTree, "_lockable", "if cell.device is None and not", "if False and"),
        ),
        Fault(
            "T22: a load takes all or nothing",
            test_a_load_larger_than_the_device,
            Replacement(LoadPlanning, "longest_fitting", "elif len(room) == 1 and of_node:", "elif False:"),
        ),
        Fault(
            "a load lands on what was computed meanwhile",
            test_the_same_tokens_again_under_a_load,
            Replacement(Loads, "_commit", "and cell.device is None", ""),
        ),
        Fault("T7: host victims ignore locks", test_a_load_whose_victims_want_the_slots_it_reads, host_victims_ignore_locks),
        Fault(
            "B5: a transfer takes a node that is another's by now",
            test_a_load_that_ends_after_its_place_was_given_to_a_write,
            Replacement(Operation, "finish", "and cell.operation is self", ""),
        ),
        Fault(
            "B5: a late load's pages are forgotten",
            test_a_load_that_ends_after_its_request_was_aborted,
            Replacement(Loads, "_commit", "self._free(c, operation.rest(landed))", "pass"),
        ),
        Fault(
            "a failing tier is no miss: a copy that fails",
            test_a_load_that_joins_one_that_fails,
            Replacement(Loads, "_commit", "if not ok and not loading.dropped:", "if False:"),
        ),
        Fault(
            "a cancelled load is a miss",
            test_a_load_larger_than_the_device,
            Replacement(Loads, "_commit", "if not ok and not loading.dropped:", "if not ok:"),
        ),
        Fault(
            "no room is no miss",
            test_a_load_larger_than_the_device,
            Replacement(UnifiedRadixCache, "load", "self.counters.misses[Reasons.NO_ROOM_IN_L1] += 1", "pass"),
        ),
        Fault(
            "a failing tier is no miss: a load that cannot start",
            test_a_load_whose_source_cannot_be_captured_is_refused,
            Replacement(
                LoadPlanning,
                "start",
                "self._misses[Reasons.NO_ROOM_IN_L1 if pages is None else Reasons.LOAD_NOT_STARTED] += 1",
                "pass",
            ),
        ),
    )
