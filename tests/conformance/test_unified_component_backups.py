"""Traps of copies to the host (L1 -> L2), of eviction and of accounts, for windows and states: one of them goes, fails or comes
back while the other components stay. One directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.transfer_queue import TransferQueue
from kvcache_radix import store as store_module
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.copies_down import CopiesDown
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.loads import Loads
from kvcache_unified_hicache.operation import Operation

SETS = {
    "S": (SWA,),
    "R": (RECURRENT,),
    "FS": (FULL, SWA),
    "FR": (FULL, RECURRENT),
    "SR": (SWA, RECURRENT),
    "FSR": (FULL, SWA, RECURRENT),
}
ALL = SETS["FSR"]
ROOM = TierSizes(PAGE, 16, 64, "insert")

every_set = pytest.mark.parametrize("components", SETS.values(), ids=SETS)
windows_and_states = pytest.mark.parametrize("component", [SWA, RECURRENT], ids=["window", "state"])


def lengths(world, tokens):
    """Usable from the device, from both tiers, and known."""
    return tuple(find(world, tokens).result[1:])


def in_chunks(world, tokens, n=PAGE):
    """One request that offers every chunk."""
    request = RequestModel(world.checked, list(tokens))
    assert request.admit()
    while request.to_compute:
        assert request.compute(n)
        request.chunk_done()
    request.finish()
    world.verify()


# copies


@every_set
def test_every_chunk_is_backed_up(tiered, components):
    """P3: of windows all that chunks offered, of states every boundary where one was kept."""
    world = tiered(ROOM, components)
    in_chunks(world, ids(1, 2, 3, 4))
    world.settle()
    here = {name: set(world.checked.model.resident(name).values()) for name in world.host.geometries}
    resident = world.ledger.claims.resident
    assert {name: set(pages) for name, pages in resident.items()} == here
    assert all(len(pages) == 4 for pages in here.values())
    finish(world)


@every_set
def test_a_skipped_copy_comes_again_with_the_next_chunk(tiered, components):
    """T21."""
    world = tiered(ROOM, components)
    world.script.congested = True
    in_chunks(world, ids(1, 2))
    assert not any(world.ledger.claims.copying.values())
    world.script.congested = False
    in_chunks(world, ids(1, 2, 3))
    assert all(len(keys) == 3 for keys in world.ledger.claims.copying.values())
    finish(world)


@windows_and_states
def test_a_skipped_copy_is_made_when_its_page_goes(tiered, component):
    """T21: alone, while full attention stays and keeps its own."""
    world = tiered(ROOM, (FULL, component))
    world.script.congested = True
    compute(world, ids(1, 2))
    world.script.congested = False
    evict(world, component.name)
    copying = world.ledger.claims.copying
    assert copying[component.name] and not copying["full"]
    world.settle()
    assert lengths(world, ids(1, 2)) == (0, 8, 8)
    finish(world)


@windows_and_states
def test_a_copy_that_fails_after_its_page_went_leaves_a_hole(tiered, component):
    """T12: of full attention it would take the node along. What is lost is counted, and comes back when it is computed again."""
    world = tiered(ROOM, (FULL, component))
    world.script.hold_back()
    world.script.fates.extend([True, False])
    compute(world, ids(1, 2))
    evict(world, component.name)
    world.settle()
    assert world.cache.counters.dropped["copy to L2 failed"] == (8 if component is SWA else 1)
    assert lengths(world, ids(1, 2)) == (0, 0, 8)
    compute(world, ids(1, 2))
    world.settle()
    evict(world)
    assert lengths(world, ids(1, 2)) == (0, 8, 8)
    finish(world)


@pytest.mark.parametrize("components", [SETS["S"], SETS["R"], SETS["SR"]], ids=["S", "R", "SR"])
def test_a_copy_that_fails_after_its_page_went_leaves_no_empty_leaf(tiered, components):
    """T12, T24: without full attention nothing else keeps the node."""
    world = tiered(ROOM, components)
    world.script.hold_back()
    world.script.fates.extend([False] * 2)
    compute(world, ids(1, 2))
    for spec in components:
        evict(world, spec.name)
    world.settle()
    assert lengths(world, ids(1, 2)) == (0, 0, 0)
    finish(world)


@every_set
def test_nothing_is_claimed_before_it_is_there(tiered, components):
    """T15."""
    world = tiered(ROOM, components)
    world.script.hold_back()
    compute(world, ids(1, 2))
    world.turn()
    for spec in components:
        evict(world, spec.name)
    assert lengths(world, ids(1, 2)) == (0, 0, 8)
    world.settle()
    started = load(world, ids(1, 2))
    assert find(world, ids(1, 2)).result.device_len == 0 and not started.ticket.ok
    world.settle()
    assert claim(world, started)
    finish(world)


@every_set
def test_a_split_under_a_write(tiered, components):
    """T9, L2: window pages land by position, the state stays with the end of what was copied."""
    world = tiered(ROOM, components)
    world.script.hold_back()
    compute(world, ids(1, 2, 3, 4))
    compute(world, ids(1, 2, 3, 5))
    compute(world, ids(1, 2, 6))
    world.settle()
    for spec in components:
        evict(world, spec.name)
    for tokens in (ids(1, 2, 3, 4), ids(1, 2, 3, 5), ids(1, 2, 6)):
        assert find(world, tokens).result.host_len == len(tokens)
        started = load(world, tokens)
        world.settle()
        assert claim(world, started)
    finish(world)


@windows_and_states
def test_a_node_deleted_under_the_copy_of_its_window_or_state(tiered, component):
    """T10: full attention's copy fails and takes the node along; the other's arrives all the same, and its slots come free."""
    world = tiered(ROOM, (FULL, component))
    world.script.hold_back()
    world.script.fates.extend([False, True])
    compute(world, ids(1, 2))
    evict(world)
    world.settle()
    assert lengths(world, ids(1, 2)) == (0, 0, 0)
    assert world.cache.size(component.name, "host").free == 64
    finish(world)


@every_set
def test_a_page_written_right_after_its_copy_was_asked_for(tiered, components):
    """B3: in a device of two pages, or two states, every page is written again in the step in which its copy was queued."""
    world = tiered(TierSizes(PAGE, 2, 64, "evict"), components)
    for prompt in (ids(1, 2), ids(3, 4), ids(5, 6)):
        compute(world, prompt)
    for prompt in (ids(1, 2), ids(3, 4), ids(5, 6), ids(1, 2)):
        world.settle()
        if find(world, prompt).result.device_len < len(prompt):
            started = load(world, prompt)
            world.settle()
            assert claim(world, started)
    finish(world)


def test_a_window_that_does_not_fit_into_the_host_evicts_nothing(tiered):
    """T22."""
    world = tiered(TierSizes(PAGE, 16, 1, "insert"), (SWA,))
    in_host(world, ids(1))
    compute(world, ids(3, 4, 5))
    world.settle()
    assert lengths(world, ids(1)) == (0, 4, 4)
    finish(world)


@windows_and_states
def test_the_same_tokens_again_under_a_write(tiered, component):
    """The page was evicted and computed anew while its first copy runs: one copy is enough."""
    world = tiered(ROOM, (FULL, component))
    world.script.hold_back()
    compute(world, ids(1, 2))
    evict(world, component.name)
    compute(world, ids(1, 2))
    assert find(world, ids(1, 2)).result.device_len == 8
    assert [copy.component for copy in world.script.pending["write"]] == ["full", component.name]
    world.settle()
    evict(world)
    assert find(world, ids(1, 2)).result.host_len == 8
    finish(world)


# accounts


@windows_and_states
def test_every_page_is_counted_once_in_every_state(tiered, component):
    """L1: absent, D+w, DH, H, locked H, H+l, DH locked, and back; full attention's own numbers are its own."""
    world = tiered(TierSizes(PAGE, 8, 8, "insert"), (FULL, component))
    n, name = 2 if component is SWA else 1, component.name

    def sizes():
        world.verify()
        return tuple(world.cache.size(name)), tuple(world.cache.size(name, "host"))

    world.script.hold_back()
    compute(world, ids(1, 2))
    assert sizes() == ((8 - n, n, 0, 0, 0, 8), (8 - n, 0, 0, n, 0, 8))
    world.settle()
    assert sizes() == ((8 - n, n, 0, 0, 0, 8), (8 - n, n, 0, 0, 0, 8))
    evict(world, name)
    assert sizes() == ((8, 0, 0, 0, 0, 8), (8 - n, n, 0, 0, 0, 8))
    assert world.cache.size("full").evictable == 2
    world.script.hold_back()
    started = load(world, ids(1, 2))
    mine = world.checked.alloc(name, 3)
    assert sizes() == ((5 - n, 0, 0, n, 3, 8), (8 - n, 0, n, 0, 0, 8))
    world.settle()
    assert sizes() == ((5 - n, 0, n, 0, 3, 8), (8 - n, n, 0, 0, 0, 8))
    held = world.claim(started)
    world.checked.unlock(held)
    world.checked.free(name, mine)
    assert sizes() == ((8 - n, n, 0, 0, 0, 8), (8 - n, n, 0, 0, 0, 8))
    finish(world)


@windows_and_states
def test_a_copy_into_a_pinned_host_is_skipped_at_once(tiered, component):
    """L9: slots that a load reads from are no victims; what is skipped is counted, a state as one."""
    n = 2 if component is SWA else 1
    world = tiered(TierSizes(PAGE, 8, n, "insert"), (component,))
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    before = world.cache.counters.postponed["no room in L2"]
    compute(world, ids(3, 4))
    assert world.cache.counters.postponed["no room in L2"] == before + (8 if component is SWA else 1)
    assert not world.script.pending["write"]
    world.settle()
    world.cancel(started)
    finish(world)


# eviction


PROMPTS = {first: ids(first, first + 1) for first in (1, 11, 21, 31)}


def order_of_going(world, name, tier):
    """The prompts, by their first page number, in the order in which their last page or state goes, one unit at a time."""
    order = []
    while len(order) < len(PROMPTS):
        if tier == "host":
            world.evict_host(name, 1)
        else:
            world.checked.evict(name, 1)
        world.verify()
        pages = world.ledger.claims.resident[name] if tier == "host" else world.checked.model.resident(name).values()
        known = {prefix for _, prefix in pages}
        order += [n for n, tokens in PROMPTS.items() if n not in order and np.asarray(tokens, np.int32).tobytes() not in known]
    return order


@pytest.mark.parametrize("tier", ["device", "host"])
@windows_and_states
def test_the_least_recently_used_goes_first(tiered, component, tier):
    """P1: a hit counts as use, a match does not; of one prefix the end goes first."""
    world = tiered(ROOM, (FULL, component))
    for tokens in PROMPTS.values():
        compute(world, tokens)
    world.settle()
    held = world.checked.lock(find(world, ids(11, 12)))
    world.checked.unlock(held)
    find(world, ids(1, 2))
    assert order_of_going(world, component.name, tier) == [1, 21, 31, 11]
    finish(world)


@windows_and_states
def test_exactly_what_is_asked_is_freed_and_nothing_else(tiered, component):
    """P2: a window's victim is trimmed; full attention keeps all of its pages."""
    world = tiered(ROOM, (FULL, component))
    for first in (1, 11):
        compute(world, ids(first, first + 1))
    world.settle()
    n = world.cache.size(component.name).evictable
    assert world.checked.evict(component.name, n - 1) == n - 1
    assert world.cache.size(component.name).evictable == 1
    assert world.cache.size("full").evictable == 4
    finish(world)


@windows_and_states
def test_what_was_locked_when_everything_went_is_queued_again(tiered, component):
    """T6, in both tiers."""
    world = tiered(ROOM, (FULL, component))
    compute(world, ids(1, 2))
    world.settle()
    n = world.cache.size(component.name).evictable
    held = world.checked.lock(find(world, ids(1, 2)))
    assert world.checked.evict(component.name, 64) == 0
    world.checked.unlock(held)
    world.verify()
    assert world.checked.evict(component.name, 64) == n
    assert world.evict_host(component.name, 64) == n
    finish(world)


@every_set
def test_roots_of_salts_go_with_their_last_page(tiered, components):
    """T17, T18: in whichever order the tiers and the components lose it."""
    world = tiered(ROOM, components)
    for salt in (b"a", b"b"):
        request = RequestModel(world.checked, ids(1, 2, 3), (salt,))
        assert request.admit() and request.compute(12)
        request.finish()
    world.settle()
    for spec in components:
        world.evict_host(spec.name, 64)
        evict(world, spec.name)
    world.settle()
    for spec in components:
        world.evict_host(spec.name, 64)
    world.verify()
    assert not world.cache._tree.store.roots
    finish(world)


@every_set
def test_a_reset_under_copies_in_both_directions(tiered, components):
    """T10, S9: of every component."""
    world = tiered(ROOM, components)
    in_host(world, ids(1, 2))
    started = load(world, ids(1, 2))
    world.host.idle()
    world.cancel(started)
    world.script.hold_back()
    compute(world, ids(3, 4))
    assert world.checked.reset()
    world.verify()
    for spec in components:
        assert world.cache.size(spec.name).in_flight and world.cache.size(spec.name, "host").in_flight
    world.settle()
    for spec in components:
        assert (world.cache.size(spec.name).free, world.cache.size(spec.name, "host").free) == (16, 64)
    compute(world, ids(1, 2))
    finish(world)


def gathers_after_scatters(monkeypatch):
    """Copies out are dispatched after what writes their pages."""
    dispatch = TransferQueue.dispatch

    def late(self, buffers):
        gathers, self._gathers = self._gathers, []
        written = dispatch(self, buffers)
        self._gathers = gathers
        return dispatch(self, written)

    monkeypatch.setattr(TransferQueue, "dispatch", late)


def of_window(test, *more):
    """A parametrised test for windows alone."""
    return lambda tiered: test(tiered, SWA, *more)


def of_state(test, *more):
    return lambda tiered: test(tiered, RECURRENT, *more)


def of(name, test):
    return lambda tiered: test(tiered, SETS[name])


HOLE = test_a_copy_that_fails_after_its_page_went_leaves_a_hole
LRU = test_the_least_recently_used_goes_first
COUNTED = test_every_page_is_counted_once_in_every_state


class TestFaultsOfComponentBackups(PlantedFaultTests):
    faults = (
        Fault(
            "P3: only full attention is copied",
            of("FSR", test_every_chunk_is_backed_up),
            Replacement(CopiesDown, "back_up_path", "in self._components:", "in self._components[:1]:"),
        ),
        Fault(
            "T21: only the last node's window is copied",
            of("S", test_a_skipped_copy_comes_again_with_the_next_chunk),
            Replacement(
                CopiesDown, "back_up_path", "reversed(nodes):\n        for component", "nodes[:1]:\n        for component"
            ),
        ),
        Fault(
            "T21: only the last state is copied",
            of("R", test_a_skipped_copy_comes_again_with_the_next_chunk),
            Replacement(
                CopiesDown, "back_up_path", "reversed(nodes):\n        for component", "nodes[:1]:\n        for component"
            ),
        ),
        Fault(
            "T21: only full attention is copied when it goes",
            of_window(test_a_skipped_copy_is_made_when_its_page_goes),
            Replacement(CopiesDown, "save", "if other == c or", "if"),
        ),
        Fault(
            "T21: a state is not copied when it goes",
            of_state(test_a_skipped_copy_is_made_when_its_page_goes),
            Replacement(CopiesDown, "save", "if other == c or", "if"),
        ),
        Fault(
            "T12: a hole in the window takes the node along",
            of_window(HOLE),
            Replacement(NodeStore, "settle", "if node.cells[self.closed].empty:", "if any(cell.empty for cell in node.cells):"),
        ),
        Fault(
            "T12: a missing state takes the node along",
            of_state(HOLE),
            Replacement(NodeStore, "settle", "if node.cells[self.closed].empty:", "if any(cell.empty for cell in node.cells):"),
        ),
        Fault(
            "T12: a failed copy of a window is as good as any",
            of_window(HOLE),
            Replacement(Backups, "_commit", "if ok and cell.host is None", "if cell.host is None"),
        ),
        Fault(
            "a lost state is not counted",
            of_state(HOLE),
            Replacement(Backups, "_commit", 'self._counters.dropped["copy to L2 failed"] += self._tokens(node, c)', "pass"),
        ),
        Fault(
            "a state counts as its tokens",
            of_state(HOLE),
            Replacement(
                Backups,
                "_tokens",
                "1 if self._store.geometries[c].at_node_end else node.end - node.start",
                "node.end - node.start",
            ),
        ),
        Fault(
            "T24: a node that lost its last component stays",
            of("SR", test_a_copy_that_fails_after_its_page_went_leaves_no_empty_leaf),
            Replacement(Backups, "_commit", "store.settle(node, reclaimed)", "pass"),
        ),
        Fault(
            "T15: a window is claimed when its copy is dispatched",
            of("FS", test_nothing_is_claimed_before_it_is_there),
            Replacement(
                Backups,
                "start",
                "self.running.add(operation)",
                "self.running.add(operation); c and self._store.put(node, c, slots.tobytes(), HOST)",
            ),
        ),
        Fault(
            "T15: a state is claimed when its copy is dispatched",
            of("FR", test_nothing_is_claimed_before_it_is_there),
            Replacement(
                Backups,
                "start",
                "self.running.add(operation)",
                "self.running.add(operation); c and self._store.put(node, c, slots.tobytes(), HOST)",
            ),
        ),
        Fault(
            "T9: the copy of a window does not learn of splits",
            of("FS", test_a_split_under_a_write),
            Replacement(Operation, "on_split", "self.nodes.append(head)", "pass"),
        ),
        Fault(
            "T9: a split hands the state's copy to the head",
            of("FR", test_a_split_under_a_write),
            Replacement(
                store_module,
                "_split_cell",
                "head = Cell(0, tail.clock)",
                "head = Cell(0, tail.clock); head.operation = tail.operation",
            ),
        ),
        Fault(
            "T10: a window's copy on a deleted node keeps its slots",
            of_window(test_a_node_deleted_under_the_copy_of_its_window_or_state),
            Replacement(Backups, "_commit", "self._free(c,", "landed and self._free(c,"),
        ),
        Fault(
            "T10: a state's copy on a deleted node keeps its slot",
            of_state(test_a_node_deleted_under_the_copy_of_its_window_or_state),
            Replacement(
                Backups, "_commit", "self._free(c, operation.rest(landed))", "landed and self._free(c, operation.rest(landed))"
            ),
        ),
        Fault(
            "B3: a window's page is copied after it was written",
            of("S", test_a_page_written_right_after_its_copy_was_asked_for),
            gathers_after_scatters,
        ),
        Fault(
            "B3: a state is copied after its slot was written",
            of("R", test_a_page_written_right_after_its_copy_was_asked_for),
            gathers_after_scatters,
        ),
        Fault(
            "T22: everything is evicted for a window that does not fit",
            test_a_window_that_does_not_fit_into_the_host_evicts_nothing,
            Replacement(HostTier, "alloc", "if n > self.obtainable(c):", "if False:"),
        ),
        Fault(
            "a window is copied twice",
            of_window(test_the_same_tokens_again_under_a_write),
            Replacement(Backups, "wanted", "and cell.operation not in self.running", ""),
        ),
        Fault(
            "a state is copied twice",
            of_state(test_the_same_tokens_again_under_a_write),
            Replacement(Backups, "wanted", "and cell.operation not in self.running", ""),
        ),
        Fault(
            "L1: what a window's loads own counts as the requests'",
            of_window(COUNTED),
            Replacement(UnifiedRadixCache, "size", "0 if self._host is None else self._host.loads.in_flight[c]", "0"),
        ),
        Fault(
            "L1: a state's copy has no owner",
            of_state(COUNTED),
            Replacement(Backups, "start", "self.in_flight[c] += n", "pass"),
        ),
        Fault(
            "L1: in flight is counted for the first component",
            of_state(COUNTED),
            Replacement(Loads, "start", "self.in_flight[c] += len(destination)", "self.in_flight[0] += len(destination)"),
        ),
        Fault(
            "L9: a skipped state is not counted",
            of_state(test_a_copy_into_a_pinned_host_is_skipped_at_once),
            Replacement(Backups, "_skip", "counter[reason] += self._tokens(node, c)", "pass"),
        ),
        Fault(
            "L9: a skipped window is not counted",
            of_window(test_a_copy_into_a_pinned_host_is_skipped_at_once),
            Replacement(Backups, "_skip", "counter[reason] += self._tokens(node, c)", "pass"),
        ),
        Fault(
            "P1: a hit is no use of the window",
            of_window(LRU, "host"),
            Replacement(RadixTree, "_pin_path", "cell.clock = clock", "pass"),
        ),
        Fault(
            "P1: a hit is no use of the state",
            of_state(LRU, "device"),
            Replacement(RadixTree, "_pin_path", "cell.clock = clock", "pass"),
        ),
        Fault(
            "P2: a window goes whole",
            of_window(test_exactly_what_is_asked_is_freed_and_nothing_else),
            Replacement(RadixTree, "victim", "if len(data) > n * INDEX_BYTES and", "if False and"),
        ),
        Fault(
            "P2: a state takes full attention along",
            of_state(test_exactly_what_is_asked_is_freed_and_nothing_else),
            Replacement(NodeStore, "demote", "if c == self.closed:", "if True:"),
        ),
        Fault(
            "T6: an unlocked window is not queued again",
            of_window(test_what_was_locked_when_everything_went_is_queued_again),
            Replacement(NodeStore, "unpin", "self.offer(node, c)", "pass"),
        ),
        Fault(
            "T6: an unlocked state is not queued again",
            of_state(test_what_was_locked_when_everything_went_is_queued_again),
            Replacement(NodeStore, "unpin", "self.offer(node, c)", "pass"),
        ),
        Fault(
            "T18: only the last node of a window is pruned",
            of("S", test_roots_of_salts_go_with_their_last_page),
            Replacement(NodeStore, "settle", "node = above", "break"),
        ),
        Fault(
            "T18: empty roots stay",
            of("R", test_roots_of_salts_go_with_their_last_page),
            Replacement(NodeStore, "drop", "if not top.children and isinstance(top, Root):", "if False:"),
        ),
        Fault(
            "T10: a reset frees what copies of states are on their way to",
            of("R", test_a_reset_under_copies_in_both_directions),
            Replacement(
                UnifiedRadixCache,
                "reset",
                "self._freeing.release(reclaimed)",
                "self._freeing.release(reclaimed); [self._freeing.slots(o.c, o.destination) for o in self._host.backups.running]",
            ),
        ),
    )
