"""What the guard does while the backend behaves: batches, order, threads, bytes in flight, what it counts and tells."""

import sys
import threading
import weakref

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage.fetch_operation import FetchOperation
from kvcache_unified_hicache.storage.guard import StorageGuard
from kvcache_unified_hicache.storage.store_operation import StoreOperation
from kvcache_unified_hicache.storage.workers import Workers


def test_pages_come_back_in_order_from_several_batches(guarded):
    world = guarded()
    assert world.store(range(10)) == [True] * 10
    assert sorted(map(len, world.backend.called("set"))) == [2, 4, 4]
    assert world.exists([3, 11, 9]) == [True, False, True]
    assert world.fetch([7, 0, 3, 9, 8, 1, 2, 12]) == [*map(world.payload, [7, 0, 3, 9, 8, 1, 2]), None]
    assert sorted(map(len, world.backend.called("get"))) == [4, 4]


def test_a_page_larger_than_a_batch_goes_alone(guarded):
    world = guarded(batch_bytes=1)
    assert world.store(range(3)) == [True] * 3
    assert world.fetch(range(3)) == list(map(world.payload, range(3)))
    assert all(len(keys) == 1 for _, keys in world.backend.calls)


def test_requests_for_nothing_are_answered(guarded):
    world = guarded()
    assert world.exists([]) == []
    assert world.store([]) == []
    assert world.fetch([]) == []


def test_the_owner_thread_only_hears_the_answers(guarded, room):
    """Nothing of the backend, no sealing and no unpacking runs on it; every answer and event does."""
    world = guarded()
    here = threading.get_ident()
    seen = {"make": set(), "done": set()}

    def noted(name, result=None):
        seen[name].add(threading.get_ident())
        return result

    value = world.value(1)
    world.guard.store([world.key(1)], len(value), lambda: noted("make", [value]), lambda _: noted("done"))
    world.settle()
    brought = room(1, world.frame)
    world.guard.fetch([world.key(1)], world.frame, brought, lambda _: noted("done"))
    world.settle()
    world.exists([1])
    world.backend.pages[world.key(1)] = b"junk"
    assert world.fetch([1]) == [None]
    assert here not in world.backend.threads | seen["make"] | brought.threads
    assert seen["make"] and brought.threads
    assert seen["done"] == world.observer.threads == {here}


def test_nothing_is_answered_before_poll(guarded):
    world = guarded()
    world.backend.tricks["exists"] = world.backend.hang
    world.start_exists([1])
    world.backend.wait_until_hanging()
    assert world.guard.poll() == 0
    world.backend.released.set()
    world.guard.wait(60)
    assert world.answers == []
    assert world.guard.poll() == 1
    assert world.answers == [[False]]


def test_bytes_and_events_are_counted(guarded):
    world = guarded()
    size = world.frame.file_bytes
    world.store(range(6))
    assert world.counters.bytes_moved == {"store": 6 * size}
    assert world.observer.stored == dict.fromkeys(world.keys(range(6)), size)
    world.fetch([0, 1, 2, 8])
    assert world.counters.bytes_moved == {"store": 6 * size, "fetch": 3 * size}
    assert world.counters.misses == {"page gone": 1}
    assert set(world.counters.seconds_moving) == {"store", "fetch"}
    assert world.counters.storage_state == "ok"
    assert world.observer.removed == []


def test_bytes_in_flight_are_bounded(guarded):
    """S10: what is too much is refused at once, and nothing of it is made."""
    world = guarded(max_bytes_in_flight=10 * guarded().frame.file_bytes)
    world.backend.tricks["set"] = world.backend.hang
    assert world.start_store(range(6))
    world.backend.wait_until_hanging()
    assert world.guard.in_flight == 6 * world.frame.file_bytes
    made = []
    assert not world.guard.store(
        world.keys(range(6, 12)), world.frame.file_bytes, lambda: made.append(1) or [], world.answers.append
    )
    assert not world.start_fetch(range(6))
    assert world.start_fetch(range(3))
    world.backend.released.set()
    answers = world.settle()
    assert len(answers) == 2
    assert made == []
    assert world.start_store(range(6, 12))
    assert world.settle() == [[True] * 6]


def test_a_request_larger_than_the_bound_goes_alone(guarded):
    """Or it could never be done."""
    world = guarded(max_bytes_in_flight=1)
    assert world.store(range(5)) == [True] * 5
    world.backend.tricks["get"] = world.backend.hang
    assert world.start_fetch([1])
    assert not world.start_fetch([2])
    assert not world.start_exists([2])
    world.backend.released.set()
    assert world.settle() == [[world.payload(1)]]


def test_memory_of_a_batch_goes_with_it(guarded):
    """A store of many pages holds what is not stored yet, not everything until its end."""
    world = guarded(workers=1)
    alive = []

    class Page(bytearray):
        def __init__(self, value):
            super().__init__(value)
            alive.append(self)

        def __del__(self):
            # bytearrays cannot be referenced weakly
            counts.append(-1)

    counts = []
    held = []
    world.backend.tricks["set"] = lambda honest, keys: held.append(len(counts)) or honest()

    def make():
        pages = [Page(world.value(number)) for number in range(12)]
        alive.clear()
        return pages

    world.guard.store(world.keys(range(12)), world.frame.file_bytes, make, world.answers.append)
    assert world.settle() == [[True] * 12]
    assert held == [0, 4, 8]


def test_nothing_of_a_page_is_kept_afterwards(guarded):
    """Neither by an operation that has ended nor by a thread that waits: one batch a worker would be a lot of memory."""
    world = guarded(workers=1)
    world.hold([1])
    value = world.backend.pages[world.key(1)]
    references = sys.getrefcount(value)
    assert world.fetch([1]) == [world.payload(1)]
    world.exists([1])  # the worker has gone on
    assert sys.getrefcount(value) == references

    class Source:
        def pages(self):
            return [world.value(2)]

    source = Source()
    kept = weakref.ref(source)
    held = []
    world.backend.tricks["set"] = lambda honest, keys: held.append(kept()) or honest()
    make = source.pages
    del source
    assert world.guard.store([world.key(2)], world.frame.file_bytes, make, world.answers.append)
    del make
    assert world.settle() == [[True]]
    assert held == [None]


def test_an_answer_may_ask_for_more(guarded):
    world = guarded()
    world.hold(range(4))

    def fetch_if_there(flags):
        assert flags == [True] * 4
        assert world.start_fetch(range(4))

    assert world.guard.exists(world.keys(range(4)), fetch_if_there)
    assert world.settle() == [list(map(world.payload, range(4)))]


def test_an_answer_that_raises_does_not_keep_the_others(guarded):
    world = guarded(workers=1)

    def fails(_):
        world.answers.append("failed")
        raise ZeroDivisionError

    assert world.guard.exists([world.key(1)], fails)
    assert world.start_exists([2])
    while world.guard.in_flight:
        world.guard.wait(60)
        try:
            world.guard.poll()
        except ZeroDivisionError:
            world.answers.append("seen")
    assert world.settle() == ["failed", "seen", [False]]


def test_what_a_request_waits_for_goes_before_writes(guarded):
    """Many writes may be queued; somebody waits for the read."""
    world = guarded(workers=1)
    world.hold([9])
    world.backend.tricks["set"] = world.backend.hang
    for number in range(3):
        assert world.start_store([number])
    world.backend.wait_until_hanging()
    assert world.start_fetch([9])
    assert world.start_exists([9])
    world.backend.released.set()
    world.settle()
    assert [name for name, _ in world.backend.calls] == [
        *("exists", "set", "get", "exists"),
        *("exists", "set", "exists", "set"),
    ]


def test_slow_writes_leave_a_thread_to_readers(guarded):
    world = guarded(workers=3)
    world.hold([9])
    world.backend.tricks["set"] = world.backend.hang
    for number in range(5):
        assert world.start_store([number])
    world.backend.wait_until_hanging(2)
    assert world.start_fetch([9])
    while not world.answers:
        world.guard.wait(60)
        world.guard.poll()
    assert world.answers == [[world.payload(9)]]
    assert len(world.backend.called("set")) == 2
    world.backend.released.set()
    assert len(world.settle()) == 6


def test_wait_returns_at_once_while_nothing_is_to_come(guarded):
    world = guarded()
    world.guard.wait(float("inf"))


class TestFaultsOfTheGuard(PlantedFaultTests):
    faults = (
        Fault(
            "batches in the wrong place",
            test_pages_come_back_in_order_from_several_batches,
            Replacement(FetchOperation, "arrived", "self._came[start : start + len(came)]", "self._came[: len(came)]"),
        ),
        Fault(
            "no bound of bytes",
            test_bytes_in_flight_are_bounded,
            Replacement(StorageGuard, "_admit", "self._in_flight == 0 or", "True or"),
        ),
        Fault(
            "bytes never given back",
            test_bytes_in_flight_are_bounded,
            Replacement(StorageGuard, "_finish", "self._in_flight -= operation.nbytes", "pass"),
        ),
        Fault(
            "larger than the bound is refused for ever",
            test_a_request_larger_than_the_bound_goes_alone,
            Replacement(StorageGuard, "_admit", "self._in_flight == 0 or", ""),
        ),
        Fault(
            "reads wait for their turn",
            test_what_a_request_waits_for_goes_before_writes,
            Replacement(Workers, "submit", "self._urgent if job.urgent else self._waiting", "self._waiting"),
        ),
        Fault(
            "values of all batches kept",
            test_memory_of_a_batch_goes_with_it,
            Replacement(StoreOperation, "batches", "return [", "self.kept = values\n    return ["),
        ),
    )
