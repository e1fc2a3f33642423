"""Reads and writes are left alone apart: what is refused because too much is under way waits, whatever the other side is like."""

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import compute, evict, finish, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import ROOM, after_restart, prefetch, script_of
from kvcache_core.contracts.locks import Refused
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.persists import Persists

BYTES = "too many bytes in flight to L3"


def busy(script, *sides):
    """Nothing is taken: for `sides` because the backend is left alone, else because of bytes in flight."""
    script.refusing, script.word, script.sides = True, "open", sides


def test_a_full_disk_gives_up_no_fetch_that_waits_for_bytes(stored):
    """S2, T21: sent later, and not answered with nothing."""
    world = after_restart(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    busy(script_of(world), "write")
    for _ in range(3):
        world.turn()
    assert not started.ticket.done
    script_of(world).let_all_through()
    world.settle()
    assert started.ticket.ok and started.ticket.span == (0, 12)
    finish(world)


def test_a_storage_that_cannot_be_read_gives_up_a_fetch_at_once(stored):
    world = after_restart(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    busy(script_of(world), "read")
    for _ in range(3):
        world.turn()
    assert started.ticket.done and not started.ticket.ok
    script_of(world).let_all_through()
    finish(world)


def test_a_fetch_refused_while_the_disk_is_full_is_tried_again(stored):
    """BUSY passes, UNAVAILABLE does not."""
    world = after_restart(stored, ids(1, 2, 3))
    busy(script_of(world), "write")
    assert world.prefetch(ids(1, 2, 3)) is Refused.BUSY
    busy(script_of(world), "read")
    assert world.prefetch(ids(1, 2, 3)) is Refused.UNAVAILABLE
    script_of(world).let_all_through()
    finish(world)


def test_a_storage_that_cannot_be_read_is_written_once_there_is_room(stored):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))
    world.settle()
    busy(script_of(world), "read")
    assert world.persist(0.0).remaining == 2
    busy(script_of(world), "write")
    assert world.cache.persist(1.0).dropped == {"the storage is unavailable": 2}
    busy(script_of(world), "read")
    evict(world)
    world.evict_host("full", 64)
    assert world.cache.counters.dropped[BYTES] == 2 * PAGE
    script_of(world).let_all_through()
    finish(world)


class TestFaultsOfSides(PlantedFaultTests):
    faults = (
        Fault(
            "S2: a full disk gives up fetches",
            test_a_full_disk_gives_up_no_fetch_that_waits_for_bytes,
            Replacement(Fetches, "_send", 'refuses("read")', 'refuses("write")'),
        ),
        Fault(
            "S2: a full disk makes a fetch unavailable",
            test_a_fetch_refused_while_the_disk_is_full_is_tried_again,
            Replacement(Fetches, "start", 'refuses("read")', 'refuses("write")'),
        ),
        Fault(
            "a storage that cannot be read is not written",
            test_a_storage_that_cannot_be_read_is_written_once_there_is_room,
            Replacement(Persists, "_send", 'refuses("write")', 'refuses("read")'),
        ),
    )
