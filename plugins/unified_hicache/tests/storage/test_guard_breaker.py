"""A backend that keeps failing is left alone, for reads and for writes apart, and tried again after a while."""

from kvcache_conformance.backend_tricks import once, raises
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage.breaker import Breaker
from kvcache_unified_hicache.storage.guard import StorageGuard


def fail(world, n, method="set"):
    world.backend.tricks[method] = raises(OSError("gone"))
    for _ in range(n):
        assert (world.store([99]) if method == "set" else world.exists([1])) == [False]


def test_a_backend_that_keeps_failing_is_left_alone(guarded, caplog):
    """S1: after three calls in a row nothing is asked any more, and the state says why."""
    world = guarded()
    fail(world, 3)
    assert world.guard.state.word == "open"
    assert world.counters.storage_state == "open: write: OSError: gone"
    assert "left alone" in caplog.text
    calls = len(world.backend.calls)
    assert not world.start_store([2])
    world.guard.poll()
    assert len(world.backend.calls) == calls


def test_a_success_in_between_starts_the_count_again(guarded):
    world = guarded()
    fail(world, 2)
    world.backend.tricks.clear()
    assert world.store([1]) == [True]
    fail(world, 2)
    assert world.guard.state.word == "failing"


def test_a_full_disk_does_not_stop_reading(guarded):
    """S2: writes are refused, reads are not; later writes resume."""
    world = guarded()
    world.hold([7])
    fail(world, 3)
    assert not world.start_store([1])
    assert world.fetch([7]) == [world.payload(7)]
    assert world.guard.state.word == "open"
    world.backend.tricks.clear()
    assert world.probe() == ["set", "delete"]
    assert world.store([1]) == [True]


def test_a_backend_that_cannot_read_may_be_written(guarded):
    world = guarded()
    fail(world, 3, "exists")
    assert not world.start_exists([1])
    assert not world.start_fetch([1])
    assert world.store([1]) == [True]


def test_it_is_tried_again_after_a_while(guarded):
    """One probe, none of the cache's pages; and again after the same while."""
    world = guarded()
    world.hold([7])
    fail(world, 3, "exists")
    world.clock.now += 9.9
    calls = len(world.backend.calls)
    world.guard.poll()
    assert len(world.backend.calls) == calls
    assert world.probe() == ["exists"]
    assert world.guard.state.word == "open"
    assert not world.start_fetch([7])
    world.backend.tricks.clear()
    assert world.probe() == ["exists"]
    assert world.guard.state.word == "ok"
    assert world.counters.storage_state == "ok"
    assert world.fetch([7]) == [world.payload(7)]


def test_nothing_else_is_asked_while_a_probe_is_out(guarded):
    world = guarded()
    fail(world, 3, "exists")
    world.backend.tricks["exists"] = world.backend.hang
    world.clock.now += 10
    world.guard.poll()
    world.backend.wait_until_hanging()
    assert world.guard.state.word == "retrying"
    assert world.counters.storage_state == "retrying: read: OSError: gone"
    assert not world.start_exists([1])
    assert world.guard.idle
    calls = len(world.backend.calls)
    world.guard.poll()
    assert len(world.backend.calls) == calls
    world.overdue()
    world.guard.poll()
    assert world.guard.state.word == "open"
    world.backend.released.set()


def test_a_probe_leaves_nothing_behind(guarded):
    world = guarded()
    fail(world, 3)
    world.backend.tricks.clear()
    world.probe()
    assert world.backend.pages == {}
    assert world.observer.stored == {}
    assert world.observer.removed == []


def test_what_waits_when_the_breaker_opens_is_given_up(guarded):
    """Not called one after another, each until its deadline; what reads goes on."""
    world = guarded(workers=1)
    world.hold([9])
    world.backend.tricks["set"] = raises(OSError("gone"))
    assert world.start_store(range(40))
    assert world.start_fetch([9])
    answers = world.settle()
    assert [False] * 40 in answers
    assert [world.payload(9)] in answers
    assert world.guard.state.word == "open"


def test_waiting_callers_are_given_up_without_a_call(guarded):
    """The first three hang; the deadline of the others must not be waited for as well."""
    world = guarded(workers=3, max_stuck=8)
    world.backend.tricks["exists"] = world.backend.hang
    for number in range(8):
        assert world.start_exists([number])
    world.backend.wait_until_hanging(3)
    world.overdue()
    assert world.settle() == [[False]] * 8
    assert world.guard.state.word == "open"
    assert world.counters.misses["storage timeout"] == 3
    assert sum(world.counters.misses.values()) == 8
    world.backend.released.set()


def test_a_late_answer_does_not_close_an_open_breaker(guarded):
    """It was asked before the calls that failed."""
    world = guarded(workers=4)
    world.backend.tricks["exists"] = once(world.backend.hang)
    assert world.start_exists([1])
    world.backend.wait_until_hanging()
    world.backend.tricks["exists"] = raises(OSError("gone"))
    for _ in range(3):
        world.start_exists([2])
        while len(world.answers) < 1:
            world.guard.poll()
        world.answers.clear()
    assert world.guard.state.word == "open"
    world.backend.released.set()
    assert world.settle() == [[False]]
    assert world.guard.state.word == "open"


class TestFaultsOfTheBreaker(PlantedFaultTests):
    faults = (
        Fault(
            "the breaker never opens",
            test_a_backend_that_keeps_failing_is_left_alone,
            Replacement(Breaker, "failed", "Word.OPEN if self._failures >= self._limit else Word.FAILING", "Word.FAILING"),
        ),
        Fault(
            "one breaker for both ways",
            test_a_full_disk_does_not_stop_reading,
            Replacement(
                StorageGuard, "refuses", "not self._breakers[side].closed", "not all(b.closed for b in self._breakers.values())"
            ),
        ),
        Fault(
            "an open breaker is never tried again",
            test_it_is_tried_again_after_a_while,
            Replacement(StorageGuard, "_probe", "breaker.probe_due_in == 0", "False"),
        ),
        Fault(
            "probes at once",
            test_it_is_tried_again_after_a_while,
            Replacement(StorageGuard, "_probe", "breaker.probe_due_in == 0", "breaker.probe_due_in is not None"),
        ),
        Fault(
            "late answers close it",
            test_a_late_answer_does_not_close_an_open_breaker,
            Replacement(Breaker, "succeeded", "if self.closed:", "if True:"),
        ),
    )
