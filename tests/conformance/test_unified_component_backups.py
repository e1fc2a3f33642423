"""Traps of copies to the host (L1 -> L2) for windows and states: one of them goes, fails or comes back while the other components
stay. One directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import (
    ROOM,
    SETS,
    every_set,
    in_chunks,
    lengths,
    of_set,
    of_state,
    of_window,
    windows_and_states,
)
from kvcache_conformance.geometries import FULL, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.transfer_queue import TransferQueue
from kvcache_radix import store as store_module
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.copies_down import CopiesDown
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.operation import Operation


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


def gathers_after_scatters(monkeypatch):
    """Copies out are dispatched after what writes their pages."""
    dispatch = TransferQueue.dispatch

    def late(self, buffers):
        gathers, self._gathers = self._gathers, []
        written = dispatch(self, buffers)
        self._gathers = gathers
        return dispatch(self, written)

    monkeypatch.setattr(TransferQueue, "dispatch", late)


AGAIN = test_a_skipped_copy_comes_again_with_the_next_chunk
HOLE = test_a_copy_that_fails_after_its_page_went_leaves_a_hole
CLAIMED = test_nothing_is_claimed_before_it_is_there
LAST_NODE_ALONE = Replacement(
    CopiesDown, "back_up_path", "reversed(nodes):\n        for component", "nodes[:1]:\n        for component"
)
AT_DISPATCH = Replacement(
    Backups,
    "start",
    "self.running.add(operation)",
    "self.running.add(operation); c and self._store.put(node, c, slots.tobytes(), HOST)",
)


class TestFaultsOfComponentBackups(PlantedFaultTests):
    faults = (
        Fault(
            "P3: only full attention is copied",
            of_set("FSR", test_every_chunk_is_backed_up),
            Replacement(CopiesDown, "back_up_path", "in self._components:", "in self._components[:1]:"),
        ),
        Fault("T21: only the last node's window is copied", of_set("S", AGAIN), LAST_NODE_ALONE),
        Fault("T21: only the last state is copied", of_set("R", AGAIN), LAST_NODE_ALONE),
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
            Replacement(Backups, "_commit", "self._counters.dropped[Reasons.COPY_FAILED] += self._tokens(node, c)", "pass"),
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
            of_set("SR", test_a_copy_that_fails_after_its_page_went_leaves_no_empty_leaf),
            Replacement(Backups, "_commit", "store.settle(node, reclaimed)", "pass"),
        ),
        Fault("T15: a window is claimed when its copy is dispatched", of_set("FS", CLAIMED), AT_DISPATCH),
        Fault("T15: a state is claimed when its copy is dispatched", of_set("FR", CLAIMED), AT_DISPATCH),
        Fault(
            "T9: the copy of a window does not learn of splits",
            of_set("FS", test_a_split_under_a_write),
            Replacement(Operation, "on_split", "self.nodes.append(head)", "pass"),
        ),
        Fault(
            "T9: a split hands the state's copy to the head",
            of_set("FR", test_a_split_under_a_write),
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
            of_set("S", test_a_page_written_right_after_its_copy_was_asked_for),
            gathers_after_scatters,
        ),
        Fault(
            "B3: a state is copied after its slot was written",
            of_set("R", test_a_page_written_right_after_its_copy_was_asked_for),
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
    )
