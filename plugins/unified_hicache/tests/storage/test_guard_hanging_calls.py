"""Calls of the backend that hang: their batch is missed at the deadline, and others go on while there are threads."""

from kvcache_conformance.backend_tricks import once
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage.guard import StorageGuard
from kvcache_unified_hicache.storage.workers import Workers


def test_a_call_that_hangs_costs_its_batch(guarded):
    """S1: other batches go on, the deadline ends it, and its late answer is nobody's."""
    world = guarded(workers=1)
    world.hold(range(6))
    world.backend.tricks["get"] = once(world.backend.hang)
    assert world.start_fetch(range(6))
    world.backend.wait_until_hanging()
    assert world.guard.poll() == 0
    world.overdue()
    assert world.settle() == [[None] * 4 + [world.payload(4), world.payload(5)]]
    assert world.counters.misses == {"storage timeout": 4}
    assert world.guard.stuck == 1
    world.backend.released.set()
    assert world.fetch(range(6)) == list(map(world.payload, range(6)))


def test_a_write_that_hangs_is_not_called_stored(guarded):
    """Whatever it does later: `stored` is said only by the answer, and this one came too late."""
    world = guarded(workers=1)
    world.backend.tricks["set"] = once(world.backend.hang)
    assert world.start_store(range(6))
    world.backend.wait_until_hanging()
    world.overdue()
    assert world.settle() == [[False] * 4 + [True] * 2]
    world.backend.released.set()
    assert world.exists([5]) == [True]
    assert sorted(world.observer.stored) == sorted(world.keys([4, 5]))


def test_waiting_ends_with_the_deadline(guarded):
    """With a clock that runs: `wait` sleeps until the call is overdue, not until its own end."""
    from kvcache_core.contracts.counters import CacheCounters
    from kvcache_unified_hicache.storage.guard import GuardSettings

    world = guarded()
    world.backend.tricks["exists"] = world.backend.hang
    guard = StorageGuard(world.backend, GuardSettings(timeout=0.05), CacheCounters(), ())
    guard.exists([world.key(1)], world.answers.append)
    while not guard.idle:
        guard.wait(float("inf"))
        guard.poll()
    assert world.answers == [[False]]
    world.backend.released.set()
    world.backend.tricks.clear()
    guard.close(60)


def hang_again(world, n):
    """`n` calls that hang, all at once, and the deadline for them. The breaker never opens here."""
    before = world.guard.stuck
    for number in range(n):
        assert world.start_exists([number])
    world.backend.wait_until_hanging(n)
    world.overdue()
    world.settle()
    assert world.guard.stuck == before + n


def test_hanging_threads_are_replaced_up_to_a_bound(guarded, threads):
    """Then every request is refused at once, until one of them comes back."""
    world = guarded(workers=2, max_stuck=3, failures_to_open=1000)
    world.backend.tricks["exists"] = world.backend.hang
    hang_again(world, 2)
    hang_again(world, 2)
    assert len(threads()) == 5
    hang_again(world, 1)
    assert world.guard.stuck == 5
    assert len(threads()) == 5
    assert not world.start_exists([1])
    assert not world.start_store([1])
    assert world.counters.storage_state == "open: read: OverdueError: no answer within 5 s"
    world.backend.tricks.clear()
    world.backend.released.set()
    while not world.start_exists([1]):
        world.guard.poll()
    assert world.settle() == [[False]]
    assert world.store([1]) == [True]


def test_what_waits_behind_hanging_threads_is_given_up(guarded):
    """No request waits for a thread that may never come back."""
    world = guarded(workers=1, max_stuck=0, failures_to_open=1000)
    world.backend.tricks["exists"] = world.backend.hang
    assert world.start_exists([1])
    world.backend.wait_until_hanging()
    assert world.start_store([2])
    assert world.start_fetch([3])
    world.overdue()
    assert sorted(map(str, world.settle())) == ["None", "[False]", "[False]"]
    assert world.backend.called("set") == []
    world.backend.released.set()


class TestFaultsOfHangingCalls(PlantedFaultTests):
    faults = (
        Fault(
            "hanging threads are replaced without a bound",
            test_hanging_threads_are_replaced_up_to_a_bound,
            Replacement(Workers, "_abandon_overdue", "len(self._stuck) <= self._max_stuck", "True"),
        ),
    )
