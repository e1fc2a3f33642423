"""Traps of prefetches (L3 -> L2) for windows and states: what a restart finds of one component and not of another, what does not
come, and what changes meanwhile. One directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

from collections import Counter

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import (
    ALL,
    PROMPT,
    SETS,
    STORED_ROOM,
    every_set,
    fetch,
    given,
    host_units,
    of_set,
    of_state,
    of_window,
    windows_and_states,
)
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, finish, ids, load
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import after_restart, host_len, lose, payload, prefetch, script_of
from kvcache_conformance.tier_steps import TierSizes
from kvcache_radix.insertion import Insertion
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.prefix_pages import PrefixPages


def fetched_since(world, before):
    """By component, how many keys were fetched since."""
    script = script_of(world)
    names = {payload(name, PROMPT[:end]): name for name in world.host.geometries for end in range(PAGE, len(PROMPT) + 1, PAGE)}
    return Counter(names[script._payload_of[key]] for key in script.fetched[before:])


# holes


@pytest.mark.parametrize(
    ("component", "lost", "expected"),
    [
        ("recurrent", [24], 20),
        ("recurrent", [24, 20, 12], 16),
        ("recurrent", [4, 8, 12, 16, 20, 24], 0),
        ("swa", [24], 20),
        ("swa", [20], 16),
        ("swa", [12, 20], 8),
        ("full", [24], 20),
        ("full", [16], 12),
    ],
)
def test_a_restart_finds_one_component_missing(stored, component, lost, expected):
    """B7, T23: every page and every state was stored; the usable prefix is the longest that is whole. What is missing is computed
    and stored again, for the next restart."""
    storage = StorageScript()
    first = stored(STORED_ROOM, storage, ALL)
    for end in range(PAGE, len(PROMPT) + 1, PAGE):
        compute(first, PROMPT[:end])
    first.cache.close()
    world = stored(STORED_ROOM, storage, ALL)
    lose(world, component, *(PROMPT[:end] for end in lost))
    started = fetch(world, PROMPT)
    assert started.ticket.span == (0, expected) and host_len(world, PROMPT) == expected
    if expected:
        loaded = load(world, PROMPT)
        world.settle()
        assert claim(world, loaded)
    compute(world, PROMPT)
    world.cache.close()
    again = stored(STORED_ROOM, storage, ALL)
    fetch(again, PROMPT)
    assert host_len(again, PROMPT) == 24
    finish(again)


@windows_and_states
def test_a_hole_in_the_host_is_filled_alone(stored, component):
    """T20: what the host has is not asked for again, and the storage's pages land in the middle of known nodes."""
    world = after_restart(stored, PROMPT, sizes=STORED_ROOM, components=(FULL, component))
    fetch(world, PROMPT)
    world.evict_host(component.name, 64)
    assert host_len(world, PROMPT) == 0
    before = len(script_of(world).fetched)
    started = fetch(world, PROMPT)
    assert started.ticket.span == (0, 24) and host_len(world, PROMPT) == 24
    assert fetched_since(world, before) == {component.name: 2 if component is SWA else 1}
    finish(world)


@windows_and_states
def test_what_arrives_decides_and_not_what_was_promised(stored, component):
    """T23: a page of the window, or the state, does not come."""
    world = after_restart(stored, PROMPT, sizes=STORED_ROOM, components=(FULL, component))
    started = prefetch(world, PROMPT)
    world.turn()
    script_of(world).fates.extend([True] * 6 + [False])
    world.settle()
    assert not started.ticket.ok and host_len(world, PROMPT) == 0
    assert world.cache.size(component.name, "host").free == world.cache.size("full", "host").free == 64
    finish(world)


@pytest.mark.parametrize("components", [SETS["S"], SETS["SR"]], ids=["S", "SR"])
def test_a_part_of_the_window_that_went_meanwhile(stored, components):
    """T24: without full attention, what arrives then is of no use and leaves no empty leaf behind."""
    world = after_restart(stored, ids(1, 2), ids(1, 2, 3), sizes=STORED_ROOM, components=components)
    fetch(world, ids(1, 2))
    started = prefetch(world, ids(1, 2, 3))
    world.turn()
    for spec in components:
        world.evict_host(spec.name, 64)
    world.settle()
    assert not started.ticket.ok and host_len(world, ids(1, 2, 3)) == 0
    assert all(world.cache.size(spec.name, "host").free == 64 for spec in components)
    assert isinstance(world.cache, UnifiedRadixCache) and not world.cache._tree.store.roots
    finish(world)


@windows_and_states
def test_two_prompts_join_over_a_window_or_a_state(stored, component):
    """T23: neighbouring prefixes share pages of their windows, equal ones a state; each is asked for once."""
    longer = PROMPT if component is RECURRENT else PROMPT[:20]
    world = after_restart(stored, PROMPT[:20], PROMPT, sizes=STORED_ROOM, components=(FULL, component))
    script = script_of(world)
    first, second = prefetch(world, PROMPT), prefetch(world, longer)
    world.settle()
    assert len(script.fetched) == len(set(script.fetched))
    assert first.ticket.ok and second.ticket.ok
    finish(world)


@windows_and_states
def test_waiting_prompts_take_half_of_the_host_at_most(stored, component):
    """T23: of the component that is short, here windows or states alone."""
    n = 4 if component is SWA else 2
    sizes = TierSizes(PAGE, 16, n, "insert", "evict")
    world = after_restart(stored, ids(1, 2), ids(3, 4), ids(5, 6), sizes=sizes, components=(component,))
    asked = [prefetch(world, prompt) for prompt in (ids(1, 2), ids(3, 4), ids(5, 6))]
    script_of(world).allowed = 3
    world.turn()
    script_of(world).hold_back()
    world.turn()
    assert world.cache.size(component.name, "host").in_flight == n // 2
    world.settle()
    assert all(each.ticket.done for each in asked) and asked[-1].ticket.ok
    finish(world)


# policy


@every_set
def test_a_miss_evicts_nothing(stored, components):
    """P6."""
    world = stored(TierSizes(PAGE, 16, 4, "insert", "evict"), StorageScript(), components)
    compute(world, ids(1, 2, 3, 4))
    world.settle()
    before = host_units(world)
    fetch(world, ids(7, 8))
    assert host_units(world) == before and host_len(world, ids(1, 2, 3, 4)) == 16
    finish(world)


@every_set
def test_a_reset_makes_every_arrival_a_stranger(stored, components):
    """S9."""
    world = after_restart(stored, PROMPT, sizes=STORED_ROOM, components=components)
    started = prefetch(world, PROMPT)
    world.turn()
    assert world.checked.reset()
    assert started.ticket.done and not started.ticket.ok
    assert all(world.cache.size(spec.name, "host").in_flight for spec in components)
    world.verify()
    world.settle()
    assert all(world.cache.size(spec.name, "host").free == 64 for spec in components)
    assert fetch(world, PROMPT).ticket.ok
    finish(world)


RESTART = test_a_restart_finds_one_component_missing
ARRIVES = test_what_arrives_decides_and_not_what_was_promised
FULL_DECIDES = Replacement(
    PrefixPages,
    "usable",
    "longest_usable(self._geometries, self.ends[:n], [flags[:n] for flags in there])",
    "longest_usable(self._geometries[:1], self.ends[:n], [flags[:n] for flags in there[:1]])",
)
PROMISED = Replacement(
    Attaching, "attach", "length = pages.usable(either(pages.resident(), arrived), fetch.length)", "length = fetch.length"
)


class TestFaultsOfComponentPrefetches(PlantedFaultTests):
    faults = (
        Fault("B7: a missing state is not noticed", given(RESTART, "recurrent", [24], 20), FULL_DECIDES),
        Fault("B7: a missing window is not noticed", given(RESTART, "swa", [20], 16), FULL_DECIDES),
        Fault(
            "T20: what fills a hole of a window is a duplicate",
            of_window(test_a_hole_in_the_host_is_filled_alone),
            Replacement(Insertion, "_existing", "if not self._has(end.cells[c]):", "if False:"),
        ),
        Fault(
            "T20: what fills the place of a state is a duplicate",
            of_state(test_a_hole_in_the_host_is_filled_alone),
            Replacement(Insertion, "_existing", "if not self._has(end.cells[c]):", "if False:"),
        ),
        Fault("T23: a window is as long as was promised", of_window(ARRIVES), PROMISED),
        Fault("T23: a state is there because it was promised", of_state(ARRIVES), PROMISED),
        Fault(
            "T24: the window is what it was when the fetch was planned",
            of_set("S", test_a_part_of_the_window_that_went_meanwhile),
            Replacement(Attaching, "attach", "either(pages.resident(), arrived)", "[[True] * pages.n for _ in arrived]"),
        ),
        Fault(
            "T23: windows are fetched twice",
            of_window(test_two_prompts_join_over_a_window_or_a_state),
            Replacement(Fetches, "_missing", "and key not in self._coming", ""),
        ),
        Fault(
            "T23: a state is fetched twice",
            of_state(test_two_prompts_join_over_a_window_or_a_state),
            Replacement(Fetches, "_missing", "and key not in self._coming", ""),
        ),
        Fault(
            "T23: no bound on waiting windows",
            of_window(test_waiting_prompts_take_half_of_the_host_at_most),
            Replacement(Fetches, "_bring", "self._host.total(c) // 2", "self._host.total(c)"),
        ),
        Fault(
            "T23: no bound on waiting states",
            of_state(test_waiting_prompts_take_half_of_the_host_at_most),
            Replacement(Fetches, "_bring", "self._host.total(c) // 2", "self._host.total(c)"),
        ),
        Fault(
            "P6: a miss makes room",
            of_set("SR", test_a_miss_evicts_nothing),
            Replacement(Fetches, "start", "self._pending.append(fetch)", "self._pending.append(fetch); self._host.alloc(0, 1)"),
        ),
        Fault(
            "S9: a reset lets late windows and states in",
            of_set("SR", test_a_reset_makes_every_arrival_a_stranger),
            Replacement(Fetches, "forget", "fetch.forgotten = True", "pass"),
        ),
    )
