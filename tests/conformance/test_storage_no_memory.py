"""Memory that runs out on the owner thread, where pages from storage land and pages for storage are read."""

import numpy as np

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import compute, evict, finish, ids
from kvcache_conformance.scripted_pages import ScriptedPageBytes
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import ROOM, after_restart, prefetch
from kvcache_unified_hicache import leftovers
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.leftovers import Leftovers
from kvcache_unified_hicache.persists import Persists


def no_memory(*arguments):
    raise MemoryError("planted")


def test_pages_that_cannot_land_are_a_counted_miss(stored, monkeypatch, caplog):
    world = after_restart(stored, ids(1, 2, 3))
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedPageBytes, "land", no_memory)
        started = prefetch(world, ids(1, 2, 3))
        world.settle()
    assert started.ticket.done and not started.ticket.ok and started.ticket.span == (0, 0)
    assert world.cache.counters.misses["no memory in L2 for what came"] == 3
    assert world.cache.counters.storage_loaded_tokens == 0
    assert world.cache.size("full", "host").free == 64 and "MemoryError" in caplog.text
    again = prefetch(world, ids(1, 2, 3))
    world.settle()
    assert again.ticket.ok and again.ticket.span == (0, 12)
    finish(world)


def test_a_victim_that_cannot_be_read_is_dropped_and_counted(stored, monkeypatch):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))
    world.settle()
    evict(world)
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedPageBytes, "capture", no_memory)
        world.evict_host("full", 64)
    assert world.cache.counters.dropped["no memory to read the pages in L2"] == 2 * PAGE
    assert world.cache.size("full", "host").free == 64
    finish(world)


def test_persist_gives_up_what_cannot_be_read(stored, monkeypatch):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))
    world.settle()
    monkeypatch.setattr(ScriptedPageBytes, "capture", no_memory)
    report = world.cache.persist(3600.0)
    assert (report.stored, report.remaining) == (0, 0)
    assert report.dropped == {"no memory to read the pages in L2": 2}


def test_persist_pauses_while_only_copies_from_the_device_run(stored, monkeypatch):
    now, pauses = [0.0], []

    def clock():
        now[0] += 1e-6
        assert now[0] < 2.0 and (now[0] < 0.1 or pauses), "persist spins"
        return now[0]

    def pause(seconds):
        assert 0 <= seconds <= leftovers.PAUSE
        pauses.append(seconds)
        now[0] += seconds

    world = stored(ROOM._replace(backup_on="evict"), StorageScript())
    compute(world, ids(1, 2))
    world.script.hold_back()
    monkeypatch.setattr(leftovers, "monotonic", clock)
    monkeypatch.setattr(leftovers, "sleep", pause, raising=False)
    report = world.cache.persist(1.0)
    assert report.remaining == 2 and np.sum(pauses) > 0.9


class TestFaultsOfNoMemory(PlantedFaultTests):
    faults = (
        Fault(
            "what did not land is attached",
            test_pages_that_cannot_land_are_a_counted_miss,
            Replacement(Attaching, "land", "request.answer(None)", "pass"),
        ),
        Fault(
            "what did not land is not counted",
            test_pages_that_cannot_land_are_a_counted_miss,
            Replacement(Attaching, "land", "self._counters.misses[Reasons.NOT_LANDED] += len(slots)", "pass"),
        ),
        Fault(
            "what cannot be read is not counted",
            test_a_victim_that_cannot_be_read_is_dropped_and_counted,
            Replacement(Persists, "_send", "return Reasons.NOT_CAPTURED", "return None"),
        ),
        Fault(
            "what is given up is not reported",
            test_persist_gives_up_what_cannot_be_read,
            Replacement(Leftovers, "_failed", "self._drop(item, reason)", "pass"),
        ),
        Fault(
            "persist spins",
            test_persist_pauses_while_only_copies_from_the_device_run,
            Replacement(Leftovers, "persist", "sleep(pause)", "pass"),
        ),
    )
