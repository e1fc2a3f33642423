"""Room for windows and states. When the host has none, host data of full attention takes along what stands on it, on the device
too and inside whichever call needed the room, and never more than that. When the device has none, a load evicts what it may, or
brings nothing. One directed test each, and the faults that each is there for.

Every call goes through the kit, which knows whose page was freed and whether it was of use to anybody.
"""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_events import freed_with_its_prefix
from kvcache_conformance.component_scenarios import (
    given,
    lengths,
    of_state,
    of_window,
    on_the_host_alone,
    sizes_of,
    windows_and_states,
)
from kvcache_conformance.geometries import FULL, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_conformance.tiered_world import Load
from kvcache_core.contracts.locks import Refused
from kvcache_radix import store as store_module
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.freeing import Freeing
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.load_planning import LoadPlanning

HOST = 6
"""Pages in L2: three prompts of two."""


def stranded(tiered, component, backup_on="insert"):
    """A world with a prompt whose full attention is in the host alone."""
    world = tiered(TierSizes(PAGE, 16, HOST, backup_on), (FULL, component))
    on_the_host_alone(world, ids(1, 2))
    return world


# in the host


@windows_and_states
def test_an_insert_that_needs_the_host_frees_what_stood_on_its_victims(tiered, component):
    """CONTRACT 4: the device page is the cache's own; nothing can use it any more, so it goes in the same call."""
    world = stranded(tiered, component)
    for prompt in (ids(3, 4), ids(5, 6)):
        compute(world, prompt)
        world.settle()
    assert lengths(world, ids(1, 2)) == (0, 8, 8)
    assert not world.cache.counters.dropped
    assert not world.ledger.events[freed_with_its_prefix("insert")]
    compute(world, ids(7, 8))
    assert world.ledger.events[freed_with_its_prefix("insert")]
    assert lengths(world, ids(1, 2)) == (0, 0, 0)
    assert set(world.cache.counters.dropped) == {"start of the prefix lost"}
    kept = {prefix for _, prefix in world.checked.model.resident(component.name).values()}
    assert np.asarray(ids(1, 2), np.int32).tobytes() not in kept
    world.settle()
    finish(world)


@windows_and_states
def test_an_eviction_whose_copies_need_the_host_frees_what_stood_on_its_victims(tiered, component):
    """The same inside `evict`, which was to make room of full attention, where pages are copied when they leave the device."""
    world = stranded(tiered, component, "evict")
    for prompt in (ids(3, 4), ids(5, 6), ids(7, 8)):
        compute(world, prompt)
    evict(world)
    assert world.ledger.events[freed_with_its_prefix("evict")]
    assert lengths(world, ids(1, 2)) == (0, 0, 0)
    world.settle()
    finish(world)


@windows_and_states
def test_what_stands_in_the_host_stays_on_the_device(tiered, component):
    """While its full attention is in either tier a page is of use, although nothing can be had from the device alone."""
    world = stranded(tiered, component)
    compute(world, ids(3, 4))
    world.settle()
    evict(world)
    assert not world.ledger.events[freed_with_its_prefix("evict")]
    started = load(world, ids(1, 2))
    assert {copy.component for copy in started.own} == {"full"}
    world.settle()
    assert claim(world, started)
    finish(world)


@windows_and_states
def test_what_a_lock_covers_does_not_fall_for_the_room(tiered, component):
    """LK6: the victims are others, and if there is none the copy is skipped."""
    world = stranded(tiered, component)
    world.script.hold_back()
    started = load(world, ids(1, 2))
    for prompt in (ids(3, 4), ids(5, 6), ids(7, 8)):
        compute(world, prompt)
    assert world.cache.counters.postponed["no room in L2"]
    world.settle()
    assert claim(world, started)
    finish(world)


# on the device


@windows_and_states
def test_a_load_whose_victims_want_the_slots_it_reads(tiered, component):
    """T7: the device is full, and its victims' copies want the host slots that are being loaded. P4: full but evictable."""
    world = tiered(TierSizes(PAGE, 4, 2 if component is SWA else 1, "evict"), (component,))
    in_host(world, ids(1, 2))
    for prompt in (ids(5, 6), ids(7, 8)):
        compute(world, prompt)
    # A request's running state comes free again; without that, all would be the cache's.
    taken = world.checked.alloc(component.name, world.cache.size(component.name).free)
    started = load(world, ids(1, 2))
    world.settle()
    assert claim(world, started)
    assert world.cache.counters.dropped
    world.checked.free(component.name, taken)
    finish(world)


@windows_and_states
def test_a_load_without_room_for_one_component_takes_nothing(tiered, component):
    """L9, T22: the window's pool, or the states', is pinned; nothing is evicted for the load, not even of other components."""
    world = tiered(TierSizes(PAGE, 8, 64, "insert"), (FULL, component))
    in_host(world, ids(1, 2))
    compute(world, ids(5, 6, 7))
    compute(world, ids(8, 9, 10, 11))
    world.settle()
    evict(world, component.name)
    taken = world.checked.alloc(component.name, world.cache.size(component.name).free)
    before = sizes_of(world)
    assert world.load(find(world, ids(1, 2))) is Refused.NO_ROOM
    assert sizes_of(world) == before and world.script.quiet
    world.checked.free(component.name, taken)
    finish(world)


@pytest.mark.parametrize("left", [0, 1])
def test_a_window_that_does_not_fit_is_not_cut(tiered, left):
    """T22: of full attention a shorter prefix needs less; a window moves, to pages that the host may lack."""
    world = tiered(TierSizes(PAGE, 4, 64, "insert"), (SWA,))
    in_host(world, ids(1), ids(1, 2, 3))
    taken = world.checked.alloc("swa", 4 - left)
    match = find(world, ids(1, 2, 3))
    assert match.result.host_len == 12
    if left:
        started = world.load(match)
        assert isinstance(started, Load) and started.held.length == 4
        world.cancel(started)
    else:
        assert world.load(match) is Refused.NO_ROOM
    world.checked.free("swa", taken)
    finish(world)


def insert_frees_the_callers(monkeypatch):
    """A page that was offered, and that the cache adopted."""
    insert = UnifiedRadixCache.insert

    def freeing(self, ids, values, extra_key=()):
        result = insert(self, ids, values, extra_key)
        self._freeing.pages(0, values["full"][0].indices[:1])
        return result

    monkeypatch.setattr(UnifiedRadixCache, "insert", freeing)


def host_victims_ignore_locks(monkeypatch):
    """Of full attention too, with all that stands on it, and without the account that would keep it from asking."""
    Replacement(HostTier, "alloc", "if n > self.obtainable(c):", "if False:")(monkeypatch)
    device, _ = store_module._CANDIDATE
    monkeypatch.setattr(store_module, "_CANDIDATE", (device, (lambda node, cell: cell.host is not None,) * 2))


def evicts_besides(monkeypatch):
    """After an eviction on the device the oldest window goes too."""
    evict_from = UnifiedRadixCache.evict

    def freeing(self, component, n, *tier):
        freed = evict_from(self, component, n, *tier)
        if component == "full" and not tier:
            self._freeing.release(self._tree.evict("swa", 1))
        return freed

    monkeypatch.setattr(UnifiedRadixCache, "evict", freeing)


FALLS = test_an_insert_that_needs_the_host_frees_what_stood_on_its_victims
STAYS = test_what_stands_in_the_host_stays_on_the_device
LOCKED = test_what_a_lock_covers_does_not_fall_for_the_room
WANTED = test_a_load_whose_victims_want_the_slots_it_reads


class TestFaultsOfRoom(PlantedFaultTests):
    faults = (
        Fault(
            "L1: what stood on a victim keeps its device page, which nobody owns",
            of_state(FALLS),
            Replacement(HostTier, "alloc", "self.freeing.give_up(reclaimed)", "pass"),
        ),
        Fault(
            "L1: a window that stood on a victim keeps its device pages, which nobody owns",
            of_window(FALLS),
            Replacement(Freeing, "release", "for c in range(len(self._device)):", "for c in range(1):"),
        ),
        Fault("O2: insert frees what a caller offered", of_window(FALLS), insert_frees_the_callers),
        Fault("evict takes the window of a prompt whose full attention is in the host", of_window(STAYS), evicts_besides),
        Fault(
            "a state lost from both tiers is not counted",
            of_state(FALLS),
            Replacement(NodeStore, "drop", "if cell.host is not None or cell.operation", "if cell.operation"),
        ),
        Fault(
            "a window lost from both tiers counts only where the device had it no more",
            of_window(FALLS),
            Replacement(
                NodeStore,
                "drop",
                "if cell.host is not None or cell.operation is not None:",
                "if cell.device is None and not cell.empty:",
            ),
        ),
        Fault("LK6: room is found among what a load reads", of_state(LOCKED), host_victims_ignore_locks),
        Fault("LK6: room is found among the window that a load reads", of_window(LOCKED), host_victims_ignore_locks),
        Fault("T7: victims of a window ignore locks", of_window(WANTED), host_victims_ignore_locks),
        Fault("T7: victims of states ignore locks", of_state(WANTED), host_victims_ignore_locks),
        Fault(
            "L9: only full attention is asked for room",
            of_window(test_a_load_without_room_for_one_component_takes_nothing),
            Replacement(LoadPlanning, "longest_fitting", "self._units(node, length, c) <= room[c] for", "True for"),
        ),
        Fault(
            "T22: a window is cut like full attention",
            given(test_a_window_that_does_not_fit_is_not_cut, 1),
            Replacement(LoadPlanning, "longest_fitting", "closed, node = store.closed, lock.node", "closed, node = 0, lock.node"),
        ),
    )
