"""What a host with nothing to compute waits for: the storage where that is all there is, a moment where only looking tells."""

import time

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import compute, find, ids
from kvcache_conformance.storage_script import ScriptedGuard
from kvcache_conformance.stored_scenarios import after_restart, prefetch, script_of
from kvcache_unified_hicache.cache import STORAGE_PAUSE, UnifiedRadixCache

MOMENT = 0.25


@pytest.fixture
def slept(monkeypatch):
    """The seconds that were slept, without sleeping."""
    seconds = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def test_a_host_waits_for_the_storage_while_that_is_all_there_is(stored, slept):
    world = after_restart(stored, ids(1, 2, 3))
    script = script_of(world)
    script.hold_back()
    prefetch(world, ids(1, 2, 3))
    script.waits.clear()
    world.cache.pause(MOMENT)
    assert (script.waits, slept) == ([STORAGE_PAUSE], [])
    script.let_all_through()
    world.settle()
    script.waits.clear()
    world.cache.pause(MOMENT)
    assert (script.waits, slept) == ([], [MOMENT]), "the storage has answered: there is nothing to wait for"


def test_copies_are_looked_at(stored, slept):
    """Nobody tells when they are complete, so a host must not wait for a storage meanwhile."""
    world = after_restart(stored, ids(1, 2, 3))
    script = script_of(world)
    script.hold_back()
    prefetch(world, ids(1, 2, 3))
    world.script.hold_back()
    compute(world, ids(7, 8))
    script.waits.clear()
    world.cache.pause(MOMENT)
    assert (script.waits, slept) == ([], [MOMENT])
    world.script.let_all_through()
    script.let_all_through()
    world.settle()
    assert find(world, ids(7, 8)).result.host_len == 8


def test_whoever_waits_for_a_prefetch_waits_for_the_storage(stored, slept, monkeypatch):
    world = after_restart(stored, ids(1, 2, 3))
    script = script_of(world)
    script.hold_back()
    ticket = prefetch(world, ids(1, 2, 3)).ticket
    monkeypatch.setattr(ScriptedGuard, "wait", lambda guard, timeout: script.let_all_through())
    assert ticket.wait(60.0) and ticket.ok
    assert slept == []


class TestFaultsOfPauses(PlantedFaultTests):
    faults = (
        Fault(
            "copies are forgotten",
            test_copies_are_looked_at,
            Replacement(UnifiedRadixCache, "pause", "or host.copying", ""),
        ),
        Fault(
            "an idle storage is waited for",
            test_a_host_waits_for_the_storage_while_that_is_all_there_is,
            Replacement(UnifiedRadixCache, "pause", "or storage.guard.idle", ""),
        ),
        Fault(
            "it only sleeps",
            test_a_host_waits_for_the_storage_while_that_is_all_there_is,
            Replacement(UnifiedRadixCache, "pause", "storage is None or", "True or storage is None or"),
        ),
    )
