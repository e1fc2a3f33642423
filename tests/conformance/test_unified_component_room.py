"""Who falls when the host has no room, for windows and states: host data of full attention takes along what stands on it, on the
device too and inside whichever call needed the room, and never more than that.

Every call goes through the kit, which knows whose page was freed and whether it was of use to anybody.
"""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.results import Segment
from kvcache_radix import store as store_module
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.freeing import Freeing
from kvcache_unified_hicache.host_tier import HostTier

HOST = 6
"""Pages in L2: three prompts of two."""

windows_and_states = pytest.mark.parametrize("component", [SWA, RECURRENT], ids=["window", "state"])


def on_the_host_alone(tiered, component, tokens):
    """A world where `tokens` have their full attention in the host alone and the other component on the device too: of a load,
    one copy failed."""
    world = tiered(TierSizes(PAGE, 16, HOST, "insert"), (FULL, component))
    in_host(world, tokens)
    world.script.fates.extend([False, True])
    started = load(world, tokens)
    world.settle()
    assert not claim(world, started)
    device = {name: len(world.checked.model.resident(name)) for name in world.host.geometries}
    assert not device["full"] and device[component.name]
    return world


@windows_and_states
def test_an_insert_that_needs_the_host_frees_what_stood_on_its_victims(tiered, component):
    """CONTRACT 4: the device page is the cache's own; nothing can use it any more, so it goes in the same call."""
    world = on_the_host_alone(tiered, component, ids(1, 2))
    for prompt in (ids(3, 4), ids(5, 6)):
        compute(world, prompt)
        world.settle()
    assert find(world, ids(1, 2)).result[1:] == (0, 8, 8)
    assert not world.cache.counters.dropped
    compute(world, ids(7, 8))
    assert find(world, ids(1, 2)).result[1:] == (0, 0, 0)
    assert set(world.cache.counters.dropped) == {"start of the prefix lost"}
    kept = {prefix for _, prefix in world.checked.model.resident(component.name).values()}
    assert np.asarray(ids(1, 2), np.int32).tobytes() not in kept
    world.settle()
    finish(world)


@windows_and_states
def test_what_a_lock_covers_does_not_fall_for_the_room(tiered, component):
    """LK6: the victims are others, and if there is none the copy is skipped."""
    world = on_the_host_alone(tiered, component, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    for prompt in (ids(3, 4), ids(5, 6), ids(7, 8)):
        compute(world, prompt)
    assert world.cache.counters.postponed["no room in L2"]
    world.settle()
    assert claim(world, started)
    finish(world)


def frees_on_insert(pick):
    """A fault: after its work, insert frees what `pick(world's cache, values)` names."""

    def plant(monkeypatch):
        insert = UnifiedRadixCache.insert

        def freeing(self, ids, values, extra_key=()):
            result = insert(self, ids, values, extra_key)
            pick(self, values, result)
            return result

        monkeypatch.setattr(UnifiedRadixCache, "insert", freeing)

    return plant


def the_callers(cache, values, result):
    """A page that the caller offered."""
    segment: Segment = values["full"][0]
    cache._freeing.pages(0, segment.indices[:1])


def a_usable_one(cache, values, result):
    """Its own, and not locked, but somebody could still have used it."""
    cache._freeing.release(cache._tree.evict("swa", 1))


def host_victims_ignore_locks(monkeypatch):
    """Of full attention too, with all that stands on it, and without the account that would keep it from asking."""
    Replacement(HostTier, "alloc", "if n > self.obtainable(c):", "if False:")(monkeypatch)
    device, _ = store_module._CANDIDATE
    monkeypatch.setattr(store_module, "_CANDIDATE", (device, (lambda node, cell: cell.host is not None,) * 2))


def of_window(test):
    return lambda tiered: test(tiered, SWA)


def of_state(test):
    return lambda tiered: test(tiered, RECURRENT)


FALLS = test_an_insert_that_needs_the_host_frees_what_stood_on_its_victims
LOCKED = test_what_a_lock_covers_does_not_fall_for_the_room


class TestFaultsOfRoom(PlantedFaultTests):
    faults = (
        Fault(
            "L6: what stood on a victim keeps its device page",
            of_state(FALLS),
            Replacement(HostTier, "alloc", "self.freeing.give_up(reclaimed)", "pass"),
        ),
        Fault(
            "L6: a window that stood on a victim keeps its device pages",
            of_window(FALLS),
            Replacement(Freeing, "release", "for c in range(len(self._device)):", "for c in range(1):"),
        ),
        Fault("L7: insert frees what a caller offered", of_window(FALLS), frees_on_insert(the_callers)),
        Fault("insert evicts from the device", of_window(FALLS), frees_on_insert(a_usable_one)),
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
    )
