"""The traps of a cache with a host tier, one directed test each, and for each the fault it is there for, planted by name.

Every call goes through the kit, which compares claims, owners and contents after each; a scenario asserts what is special to it.
"""

import numpy as np
import pytest

from kvcache_conformance.geometries import FULL, SWA
from kvcache_conformance.mutants import Mutant
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.tier_steps import TierSizes
from kvcache_conformance.tiered_world import Load
from kvcache_conformance.toy_kit import NOTICED
from kvcache_core.contracts.locks import Refused
from kvcache_core.transfer_queue import TransferQueue
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.freeing import Freeing
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.loads import Loads
from kvcache_unified_hicache.operation import Operation
from kvcache_unified_hicache.ticket import LoadTicket

PAGE = 4


def ids(*pages):
    """One page for each number."""
    return [100 * page + i for page in pages for i in range(PAGE)]


def compute(world, tokens):
    """One request, in one chunk, without a load."""
    request = RequestModel(world.checked, list(tokens))
    assert request.admit()
    assert request.compute(len(tokens))
    request.finish()
    world.verify()


def find(world, tokens):
    return world.checked.match(np.asarray(tokens, np.int32))


def evict(world):
    world.checked.evict("full", world.host.allocators["full"].total)
    world.verify()


def in_host(world, *prompts):
    """The prompts are in host memory alone."""
    for tokens in prompts:
        compute(world, tokens)
    world.settle()
    evict(world)
    world.settle()
    for tokens in prompts:
        assert find(world, tokens).result[1:] == (0, len(tokens), len(tokens))


def load(world, tokens):
    started = world.load(find(world, tokens))
    assert isinstance(started, Load), started
    world.verify()
    return started


def claim(world, started):
    held = world.claim(started)
    if held is not None:
        world.checked.unlock(held)
    world.verify()
    return held is not None


def finish(world):
    world.verify()
    world.drain()


def a_load_that_joins_one_that_fails(tiered):
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
    finish(world)


def a_load_whose_victims_want_the_slots_it_reads(tiered):
    world = tiered(TierSizes(PAGE, 4, 3, "evict"))
    in_host(world, ids(1, 2))
    compute(world, ids(5, 6, 7, 8))
    started = load(world, ids(1, 2))
    world.settle()
    assert claim(world, started)
    assert world.cache.counters.dropped
    finish(world)


def two_loads_over_one_prefix(tiered):
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


def a_split_under_a_write(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    compute(world, ids(1, 2, 3, 4))
    compute(world, ids(1, 5))
    compute(world, ids(1, 2, 6))
    world.settle()
    evict(world)
    for tokens in (ids(1, 2, 3, 4), ids(1, 5), ids(1, 2, 6)):
        assert find(world, tokens).result.host_len == len(tokens)
        started = load(world, tokens)
        world.settle()
        assert claim(world, started)
    finish(world)


def a_split_under_a_load(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2, 3, 4))
    world.script.hold_back()
    started = load(world, ids(1, 2, 3, 4))
    compute(world, ids(1, 2, 5))
    world.settle()
    assert claim(world, started)
    assert find(world, ids(1, 2, 3, 4)).result.device_len == 16
    finish(world)


def a_node_deleted_under_its_copies(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    started = load(world, ids(1, 2))
    world.host.idle()
    world.cancel(started)
    world.script.hold_back()
    compute(world, ids(3, 4))
    assert world.checked.reset()
    world.verify()
    assert world.cache.size("full").in_flight == world.cache.size("full", "host").in_flight == 2
    world.settle()
    assert world.cache.size("full").free == 16
    assert world.cache.size("full", "host").free == 64
    compute(world, ids(1, 2))
    finish(world)


def a_cancelled_load_whose_start_went(tiered):
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


def a_write_that_fails_after_its_page_went(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    world.script.fates.extend([False, True])
    compute(world, ids(1, 2))
    compute(world, ids(1, 2, 3))
    evict(world)
    dropped = sum(world.cache.counters.dropped.values())
    world.settle()
    assert find(world, ids(1, 2, 3)).result[1:] == (0, 0, 0)
    assert sum(world.cache.counters.dropped.values()) - dropped == 12
    finish(world)


def a_split_write_that_fails_after_its_pages_went(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    world.script.fates.append(False)
    compute(world, ids(1, 2, 3))
    compute(world, ids(1, 5))
    evict(world)
    world.settle()
    assert find(world, ids(1, 2, 3)).result[1:] == (0, 0, 0)
    assert find(world, ids(1, 5)).result[1:] == (0, 0, 0)
    finish(world)


def a_write_that_fails_leaves_the_page_and_comes_again(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.fates.append(False)
    compute(world, ids(1, 2))
    world.settle()
    assert find(world, ids(1, 2)).result[1:] == (8, 8, 8)
    evict(world)
    world.settle()
    assert find(world, ids(1, 2)).result.host_len == 8
    finish(world)


def a_page_written_right_after_its_copy_was_asked_for(tiered):
    world = tiered(TierSizes(PAGE, 2, 64, "evict"))
    in_host(world, ids(1, 2))
    compute(world, ids(3, 4))
    # The victims' pages are where the load goes, in the same dispatch.
    started = load(world, ids(1, 2))
    world.settle()
    assert claim(world, started)
    evict(world)
    # A request writes the page in the same step.
    compute(world, ids(3, 4, 5)[:8])
    world.settle()
    for tokens in (ids(1, 2), ids(3, 4)):
        evict(world)
        started = load(world, tokens)
        world.settle()
        assert claim(world, started)
    finish(world)


def a_load_with_a_match_that_went_stale(tiered):
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


def nothing_is_claimed_before_it_is_there(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    compute(world, ids(1, 2))
    world.host.idle()
    world.poll()
    world.verify()
    assert find(world, ids(1, 2)).result[1:] == (8, 8, 8)
    evict(world)
    assert find(world, ids(1, 2)).result[1:] == (0, 0, 8)
    world.settle()
    started = load(world, ids(1, 2))
    assert find(world, ids(1, 2)).result.device_len == 0
    assert not started.ticket.ok
    world.settle()
    assert claim(world, started)
    finish(world)


def a_skipped_backup_comes_again(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.congested = True
    compute(world, ids(1, 2))
    compute(world, ids(3, 4))
    assert not world.ledger.claims.copying["full"]
    world.script.congested = False
    compute(world, ids(1, 2, 5))
    assert len(world.ledger.claims.copying["full"]) == 3
    evict(world)
    world.settle()
    assert find(world, ids(1, 2, 5)).result.host_len == 12
    assert find(world, ids(3, 4)).result.host_len == 8
    finish(world)


def a_node_larger_than_the_host(tiered):
    world = tiered(TierSizes(PAGE, 16, 3, "insert"))
    in_host(world, ids(1, 2))
    compute(world, ids(3, 4, 5, 6, 7))
    evict(world)
    assert find(world, ids(1, 2)).result.host_len == 8
    finish(world)


def a_load_larger_than_the_device(tiered):
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
    world.checked.free("full", taken)
    finish(world)


def what_a_dropped_start_takes_along_is_counted(tiered):
    world = tiered(TierSizes(PAGE, 16, 1, "insert"))
    compute(world, ids(1))
    world.script.congested = True
    world.settle()
    world.evict_host("full", 1)
    world.script.congested = False
    compute(world, ids(1, 2)[:8])
    world.settle()
    evict(world)
    finish(world)


def a_load_of_nothing(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    assert world.load(find(world, ids(1))) is Refused.NOTHING_TO_DO
    compute(world, ids(1))
    assert world.load(find(world, ids(1))) is Refused.NOTHING_TO_DO
    finish(world)


def a_page_computed_again_under_a_load_is_copied_when_the_host_lost_it(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1))
    world.script.hold_back()
    started = load(world, ids(1))
    world.host.idle()
    world.cancel(started)
    world.evict_host("full", 1)
    compute(world, ids(1))
    evict(world)
    world.settle()
    assert find(world, ids(1)).result.host_len == 4
    finish(world)


def the_same_tokens_again_under_a_write(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    compute(world, ids(1, 2))
    evict(world)
    compute(world, ids(1, 2))
    assert find(world, ids(1, 2)).result.device_len == 8
    assert len(world.script.pending["write"]) == 1
    world.settle()
    evict(world)
    assert find(world, ids(1, 2)).result.host_len == 8
    finish(world)


def the_same_tokens_again_under_a_load(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    compute(world, ids(1, 2))
    world.settle()
    assert claim(world, started)
    finish(world)


def a_load_whose_victims_cut_what_it_brings(tiered):
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


SCENARIOS = [
    value for value in list(globals().values()) if getattr(value, "__code__", None) and "tiered" in value.__code__.co_varnames[:1]
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_trap_is_avoided(scenario, tiered):
    scenario(tiered)


MUTANTS = [
    (
        a_load_that_joins_one_that_fails,
        Mutant("T1: ok is what the copies said", LoadTicket, "ok", "and self._usable(self._lock)", ""),
    ),
    (two_loads_over_one_prefix, Mutant("T8: loads do not join", Loads, "needs", "if loading is None:", "if True:")),
    (
        two_loads_over_one_prefix,
        Mutant("T8: who leaves first ends it for all", Loads, "leave", "if not loading.interest and", "if"),
    ),
    (
        a_split_under_a_write,
        Mutant("T9: the copy does not learn of splits", Operation, "on_split", "self.nodes.append(head)", "pass"),
    ),
    (
        a_split_under_a_write,
        Mutant(
            "T9: pages by node, not by position",
            Operation,
            "_part",
            "slice((node.start - self._start) // self._page_size, (node.end - self._start) // self._page_size)",
            "slice(0, (node.end - node.start) // self._page_size)",
        ),
    ),
    (
        a_split_under_a_load,
        Mutant("T9: the load does not learn of splits", Operation, "on_split", "self.nodes.append(head)", "pass"),
    ),
    (
        a_node_deleted_under_its_copies,
        Mutant(
            "T10: a reset frees what copies are on their way to",
            UnifiedRadixCache,
            "reset",
            "self._freeing.release(reclaimed)",
            "self._freeing.release(reclaimed); [self._freeing.slots(o.c, o.destination) for o in self._host.backups.running]",
        ),
    ),
    (
        a_split_write_that_fails_after_its_pages_went,
        Mutant("T10: a copy lands on a deleted node", Operation, "finish", "if node.parent is not None and cell", "if cell"),
    ),
    (
        a_cancelled_load_whose_start_went,
        Mutant("T11: closure is not checked at the commit", Loads, "_commit", "if ok and closed and", "if ok and"),
    ),
    (
        a_write_that_fails_after_its_page_went,
        Mutant("T12: nobody drops the empty node", Backups, "_commit", "store.settle(node, reclaimed)", "pass"),
    ),
    (
        a_write_that_fails_after_its_page_went,
        Mutant("T12: a failed copy is as good as any", Backups, "_commit", "if ok and cell.host is None", "if cell.host is None"),
    ),
    (
        a_write_that_fails_after_its_page_went,
        Mutant("what goes with it is not counted", Freeing, "give_up", "if reclaimed.lost_tokens:", "if False:"),
    ),
    (
        a_load_with_a_match_that_went_stale,
        Mutant("T14: lock_ref trusts the match", RadixTree, "_lockable", "if cell.device is None and not", "if False and"),
    ),
    (
        nothing_is_claimed_before_it_is_there,
        Mutant(
            "T15: claimed when it is dispatched",
            Backups,
            "start",
            "self.running.add(operation)",
            "self.running.add(operation); self._store.put(node, c, slots.tobytes(), HOST)",
        ),
    ),
    (
        a_skipped_backup_comes_again,
        Mutant("T21: nothing is copied when it is evicted", UnifiedRadixCache, "_save", "if other == c or", "if False and"),
    ),
    (
        a_skipped_backup_comes_again,
        Mutant("T21: only the last node is copied", UnifiedRadixCache, "_back_up_path", "in reversed(nodes)", "in nodes[:1]"),
    ),
    (
        a_node_larger_than_the_host,
        Mutant("T22: everything is evicted for nothing", HostTier, "alloc", "if n > self._pools[c].n_free", "if False and n > 0"),
    ),
    (
        a_load_larger_than_the_device,
        Mutant("T22: a load takes all or nothing", UnifiedRadixCache, "_longest_fitting", "if only_pages and", "if False and"),
    ),
    (
        a_page_computed_again_under_a_load_is_copied_when_the_host_lost_it,
        Mutant("any copy under way counts as one to the host", Backups, "wanted", "not in self.running", "is None"),
    ),
    (
        the_same_tokens_again_under_a_write,
        Mutant("a copy under way is not seen", Backups, "wanted", "and cell.operation not in self.running", ""),
    ),
    (
        the_same_tokens_again_under_a_load,
        Mutant("a load lands on what was computed meanwhile", Loads, "_commit", "and cell.device is None", ""),
    ),
    (
        a_write_that_fails_leaves_the_page_and_comes_again,
        Mutant("a failed copy keeps its slots", Backups, "_commit", "self._free(c, operation.rest(landed))", "pass"),
    ),
]


@pytest.mark.parametrize(("scenario", "mutant"), MUTANTS, ids=lambda value: value.name if isinstance(value, Mutant) else "")
def test_a_planted_fault_is_noticed(scenario, mutant, tiered, monkeypatch):
    mutant.plant(monkeypatch)
    with pytest.raises(NOTICED):
        scenario(tiered)


def test_a_planted_fault_is_noticed_gathers_after_scatters(tiered, monkeypatch):
    """T13: copies out are dispatched after what writes their pages."""
    dispatch = TransferQueue.dispatch

    def late(self, buffers):
        gathers, self._gathers = self._gathers, []
        written = dispatch(self, buffers)
        self._gathers = gathers
        return dispatch(self, written)

    monkeypatch.setattr(TransferQueue, "dispatch", late)
    with pytest.raises(NOTICED):
        a_page_written_right_after_its_copy_was_asked_for(tiered)


def test_a_planted_fault_is_noticed_host_victims_ignore_locks(tiered, monkeypatch):
    """T7, LK6."""

    def unlocked(node, cell):
        return cell.host is not None and (cell.device is not None or not cell.host_kids)

    candidates = (NodeStore.__init__.__globals__["_CANDIDATE"][0], (unlocked, unlocked))
    # The account of what is evictable would already keep it from asking: without that, too.
    Mutant("", HostTier, "alloc", "if n > self._pools[c].n_free", "if False and n > 0").plant(monkeypatch)
    monkeypatch.setitem(NodeStore.__init__.__globals__, "_CANDIDATE", candidates)
    with pytest.raises(NOTICED):
        a_load_whose_victims_want_the_slots_it_reads(tiered)
