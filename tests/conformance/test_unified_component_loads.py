"""Traps of loads (L2 -> L1) for windows and states: the other components' copies may end differently, and what one of them lacks
is a hole, not the end of a prefix. One directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

from collections import Counter

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import (
    ALL,
    ROOM,
    every_set,
    given,
    lengths,
    of_set,
    of_state,
    of_window,
    sizes_of,
    windows_and_states,
)
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.locks import Refused
from kvcache_radix import tree as tree_module
from kvcache_radix.insertion import Insertion
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.loads import Loads
from kvcache_unified_hicache.operation import Operation
from kvcache_unified_hicache.ticket import LoadTicket

SOME_ROOM = ROOM._replace(interval=PAGE)
"""A state at every page."""


def units(started):
    """Pages or states of each component that a load brings itself."""
    counted = Counter()
    for copy in started.own:
        counted[copy.component] += len(copy.device)
    return dict(counted)


# which length, and what of it


def test_only_what_is_needed_is_loaded(tiered):
    """Of a window its pages, of a state the last."""
    world = tiered(SOME_ROOM, ALL)
    in_host(world, ids(1, 2, 3, 4))
    started = load(world, ids(1, 2, 3, 4))
    assert units(started) == {"full": 4, "swa": 2, "recurrent": 1}
    world.settle()
    assert claim(world, started)
    finish(world)


@pytest.mark.parametrize(("lost", "n", "length"), [("recurrent", 1, 12), ("swa", 1, 12), ("swa", 2, 0)])
def test_the_host_serves_what_every_component_has(tiered, lost, n, length):
    """B7: the newest state, or pages of the window, left the host; what the others have beyond that is not loaded."""
    world = tiered(SOME_ROOM, ALL)
    in_host(world, ids(1, 2, 3, 4), ids(1, 2, 3))
    assert world.evict_host(lost, n) == n
    assert lengths(world, ids(1, 2, 3, 4)) == (0, length, 16)
    if length:
        started = load(world, ids(1, 2, 3, 4))
        assert units(started) == {"full": 3, "swa": 2, "recurrent": 1}
        world.settle()
        assert claim(world, started)
    else:
        assert world.load(find(world, ids(1, 2, 3, 4))) is Refused.NOTHING_TO_DO
    finish(world)


@windows_and_states
def test_a_hole_is_loaded_alone(tiered, component):
    """The device lost one component, the host has it still."""
    world = tiered(SOME_ROOM, (FULL, component))
    compute(world, ids(1, 2))
    world.settle()
    evict(world, component.name)
    assert find(world, ids(1, 2)).result[1:3] == (0, 8)
    started = load(world, ids(1, 2))
    assert set(units(started)) == {component.name}
    world.settle()
    assert claim(world, started)
    assert find(world, ids(1, 2)).result.device_len == 8
    finish(world)


@windows_and_states
def test_a_hole_is_computed_again(tiered, component):
    """T20: neither tier has it; the same tokens bring it back, and the rest stays what it was."""
    world = tiered(TierSizes(PAGE, 16, 64, "evict"), (FULL, component))
    compute(world, ids(1, 2, 3))
    world.script.congested = True
    evict(world, component.name)
    world.script.congested = False
    before = dict(world.checked.model.resident("full"))
    assert lengths(world, ids(1, 2, 3)) == (0, 0, 12)
    compute(world, ids(1, 2, 3))
    assert find(world, ids(1, 2, 3)).result.device_len == 12
    assert world.checked.model.resident("full") == before
    finish(world)


# copies that end differently


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_load_that_fails_for_one_component_is_undone_for_it_alone(tiered, failing):
    world = tiered(SOME_ROOM, ALL)
    in_host(world, ids(1, 2))
    world.script.fates.extend([number != failing for number in range(3)])
    started = load(world, ids(1, 2))
    names = [copy.component for copy in started.own]
    world.settle()
    assert not claim(world, started)
    here = {name: len(world.checked.model.resident(name)) for name in names}
    brought = {"full": 2, "swa": 2, "recurrent": 1}
    assert here == {name: 0 if name == names[failing] else n for name, n in brought.items()}
    again = load(world, ids(1, 2))
    assert units(again) == {names[failing]: brought[names[failing]]}
    world.settle()
    assert claim(world, again)
    finish(world)


@windows_and_states
def test_a_load_that_joins_one_whose_window_or_state_fails(tiered, component):
    """T1: a window's pages are shared by neighbouring prefixes, a state by equal ones."""
    longer = ids(1, 2, 3) if component is SWA else ids(1, 2)
    world = tiered(SOME_ROOM, (FULL, component))
    for prompt in (ids(1, 2), longer):
        in_host(world, prompt)
    world.script.fates.extend([True, False])
    first, second = load(world, ids(1, 2)), load(world, longer)
    assert [copy.component for copy in second.joined] == ["full", component.name]
    world.settle()
    assert second.ticket.done
    assert not claim(world, first)
    assert not claim(world, second)
    finish(world)


@every_set
def test_who_joins_goes_on_when_the_first_leaves(tiered, components):
    """T8."""
    world = tiered(SOME_ROOM, components)
    in_host(world, ids(1, 2))
    first, second = load(world, ids(1, 2)), load(world, ids(1, 2))
    assert (len(second.own), len(second.joined)) == (0, len(components))
    world.cancel(first)
    assert not second.ticket.done
    world.settle()
    assert claim(world, second)
    finish(world)


@every_set
def test_a_load_that_is_aborted_gives_back_every_component(tiered, components):
    """L5: before it was dispatched, and after."""
    world = tiered(SOME_ROOM, components)
    in_host(world, ids(1, 2))
    before = sizes_of(world)
    world.cancel(load(world, ids(1, 2)))
    assert world.script.quiet and sizes_of(world) == before
    started = load(world, ids(1, 2))
    world.host.idle()
    world.script.hold_back()
    world.cancel(started)
    assert all(world.cache.size(spec.name).in_flight for spec in components)
    world.settle()
    assert not any(world.cache.size(spec.name).in_flight for spec in components)
    finish(world)


@every_set
def test_a_load_that_ends_after_its_tokens_were_computed(tiered, components):
    """B5: its request was aborted; others computed the tokens meanwhile, and its pages come free, once."""
    world = tiered(SOME_ROOM, components)
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    brought = units(started)
    world.host.idle()
    world.cancel(started)
    compute(world, ids(1, 2))
    free = {name: world.cache.size(name).free for name in brought}
    world.settle()
    assert {name: world.cache.size(name).free - n for name, n in free.items()} == brought
    finish(world)


# nodes that are cut meanwhile


@every_set
def test_a_split_under_a_load(tiered, components):
    """T9, L2: window pages land by position, the state at the end of what was loaded."""
    world = tiered(ROOM, components)
    in_host(world, ids(1, 2, 3, 4))
    world.script.hold_back()
    started = load(world, ids(1, 2, 3, 4))
    compute(world, ids(1, 2, 3, 5))
    world.settle()
    assert claim(world, started)
    assert find(world, ids(1, 2, 3, 4)).result.device_len == 16
    finish(world)


# matches that went stale


@windows_and_states
def test_a_match_whose_window_or_state_went(tiered, component):
    """T14: alone, in either tier."""
    world = tiered(SOME_ROOM, (FULL, component))
    compute(world, ids(1, 2))
    world.settle()
    match = find(world, ids(1, 2))
    evict(world, component.name)
    assert world.checked.lock(match) is None
    match = find(world, ids(1, 2))
    assert match.result.host_len == 8
    world.evict_host(component.name, 64)
    assert world.load(match) is Refused.STALE
    finish(world)


def test_a_state_serves_no_shorter_prefix(tiered):
    """A lock inside a node, whose state is that of its end."""
    world = tiered(ROOM, (FULL, RECURRENT))
    compute(world, ids(1, 2))
    assert world.checked.lock(find(world, ids(1, 2)), 4) is None
    finish(world)


JOINED = test_a_load_that_joins_one_whose_window_or_state_fails
STALE = test_a_match_whose_window_or_state_went


class TestFaultsOfComponentLoads(PlantedFaultTests):
    faults = (
        Fault(
            "a load brings all of a window's pages",
            test_only_what_is_needed_is_loaded,
            Replacement(Loads, "needs", "first_needed(length)", "first_needed(0)"),
        ),
        Fault(
            "B7: full attention decides alone in the host",
            given(test_the_host_serves_what_every_component_has, "recurrent", 1, 12),
            Replacement(tree_module, "reach", "if lacking is None:", "if True:"),
        ),
        Fault(
            "a hole that was computed again is a duplicate",
            of_window(test_a_hole_is_computed_again),
            Replacement(Insertion, "_existing", "if not self._has(end.cells[c]):", "if False:"),
        ),
        Fault(
            "a state that was computed again is a duplicate",
            of_state(test_a_hole_is_computed_again),
            Replacement(Insertion, "_existing", "if not self._has(end.cells[c]):", "if False:"),
        ),
        Fault(
            "a hole is loaded only where full attention is",
            of_state(test_a_hole_is_loaded_alone),
            Replacement(Loads, "needs", "if cell.device is None:", "if all(other.device is None for other in node.cells):"),
        ),
        Fault(
            "a failed window lands",
            given(test_a_load_that_fails_for_one_component_is_undone_for_it_alone, 1),
            Replacement(Loads, "_commit", "if ok and closed and", "if closed and"),
        ),
        Fault(
            "a failed state keeps its slot",
            given(test_a_load_that_fails_for_one_component_is_undone_for_it_alone, 2),
            Replacement(Loads, "_commit", "self._free(c,", "ok and self._free(c,"),
        ),
        Fault(
            "T1: ok is what the window's copies said",
            of_window(JOINED),
            Replacement(LoadTicket, "ok", "and self._usable(self._lock)", ""),
        ),
        Fault(
            "T1: ok is what the state's copy said",
            of_state(JOINED),
            Replacement(LoadTicket, "ok", "and self._usable(self._lock)", ""),
        ),
        Fault(
            "T8: two loads of one state",
            of_set("R", test_who_joins_goes_on_when_the_first_leaves),
            Replacement(Loads, "needs", "if loading is None:", "if True:"),
        ),
        Fault(
            "T8: who leaves first ends the window for all",
            of_set("FS", test_who_joins_goes_on_when_the_first_leaves),
            Replacement(Loads, "leave", "if not loading.interest and", "if"),
        ),
        Fault(
            "L5: an abort ends the first component's load alone",
            of_set("FSR", test_a_load_that_is_aborted_gives_back_every_component),
            Replacement(LoadTicket, "cancel", "for loading in self._waits_for:", "for loading in self._waits_for[:1]:"),
        ),
        Fault(
            "B5: a late window lands on what was computed",
            of_set("S", test_a_load_that_ends_after_its_tokens_were_computed),
            Replacement(Loads, "_commit", "and cell.device is None", ""),
        ),
        Fault(
            "B5: a late state is forgotten",
            of_set("R", test_a_load_that_ends_after_its_tokens_were_computed),
            Replacement(Loads, "_commit", "self._free(c, operation.rest(landed))", "pass"),
        ),
        Fault(
            "T9: window pages by node, not by position",
            of_set("S", test_a_split_under_a_load),
            Replacement(
                Operation,
                "_part",
                "slice((node.start - self._start) // self._page_size, (node.end - self._start) // self._page_size)",
                "slice(0, (node.end - node.start) // self._page_size)",
            ),
        ),
        Fault(
            "T9: a state by position",
            of_set("FR", test_a_split_under_a_load),
            Replacement(Operation, "_part", "if self._at_node_end:", "if False:"),
        ),
        Fault(
            "T14: lock_ref trusts the match of a window",
            of_window(STALE),
            Replacement(RadixTree, "_lockable", "if cell.device is None and not", "if False and"),
        ),
        Fault(
            "T14: lock_ref trusts the match of a state",
            of_state(STALE),
            Replacement(RadixTree, "_lockable", "if cell.device is None and not", "if False and"),
        ),
        Fault(
            "a state is good for any prefix of its node",
            test_a_state_serves_no_shorter_prefix,
            Replacement(RadixTree, "_lockable", "if geometry.at_node_end and node.end != length:", "if False:"),
        ),
    )
