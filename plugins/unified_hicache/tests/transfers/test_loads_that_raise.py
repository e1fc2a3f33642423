"""A load that raises is gone: nothing of it is carried out later, into pages that belong to somebody else by then. What can be
missing at start is asked for at start."""

import threading
from queue import SimpleQueue

import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.errors import ConfigError
from kvcache_unified_hicache import workers
from kvcache_unified_hicache.controller import HiCacheController
from kvcache_unified_hicache.host_pool import captured
from kvcache_unified_hicache.host_pool.captured import Batch
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.waiting import Looking, make_waiting
from kvcache_unified_hicache.workers import Workers


@pytest.fixture
def async_impl():
    """Both assemble alike."""
    return "future"


@pytest.fixture
def pool_type():
    """Only what lies in memory of its own comes in several batches."""
    return PerPagePool


def raises_at(monkeypatch, owner, name, number):
    """The call of that number, counted from 1, raises; where it is negative, after it was carried out."""
    real, calls = getattr(owner, name), []

    def planted(*arguments, **named):
        calls.append(None)
        if len(calls) == number:
            raise MemoryError("planted")
        result = real(*arguments, **named)
        if len(calls) == -number:
            raise MemoryError("planted")
        return result

    monkeypatch.setattr(owner, name, planted)


def nothing_stays(rig, page, slots, monkeypatch, owner, name, number):
    """The load of `slots` raises there; then its pages are another's."""
    with monkeypatch.context() as inside:
        raises_at(inside, owner, name, number)
        with pytest.raises(MemoryError, match="planted"):
            rig.load([10, 11], slots)
    rig.gate.idle()
    assert np.array_equal(rig.gate.read([10, 11]), page(0, 0)), "what a load that raised had queued was dispatched"
    rig.gate.write([10, 11], page(7, 8))
    # Whatever was kept would be carried out before this one.
    rig.settle(rig.load([12, 13], slots, "later"))
    assert np.array_equal(rig.gate.read([10, 11]), page(7, 8)), "a load that raised was carried out"
    assert np.array_equal(rig.gate.read([12, 13]), page(1, 2))
    assert rig.committed == [("later", True)]
    assert rig.counters.bytes_moved["h2d"] == 24, "what raised was counted"
    assert rig.controller.has_room("full", 1 << 20), "bytes of what raised are in flight for ever"


def test_a_load_without_a_worker_is_gone(rig, page, monkeypatch):
    """Its pages lie apart, and have to be assembled."""
    nothing_stays(rig, page, rig.stored(1, 2), monkeypatch, Looking, "run", 1)


def test_a_load_whose_batches_cannot_all_be_queued_is_gone(rig, page, monkeypatch):
    """The first of two is queued already."""
    monkeypatch.setattr(captured, "WORTH_A_DISPATCH", 0)
    nothing_stays(rig, page, rig.stored(1, 2), monkeypatch, Batch, "targets", 2)


def test_a_load_that_raises_after_all_was_queued_is_gone(rig, page, monkeypatch):
    monkeypatch.setattr(captured, "WORTH_A_DISPATCH", 0)
    nothing_stays(rig, page, rig.stored(1, 2), monkeypatch, Batch, "targets", -2)


def test_a_load_whose_source_cannot_be_had_is_gone(rig, page, monkeypatch):
    nothing_stays(rig, page, rig.stored(1, 2), monkeypatch, PerPagePool, "get", 1)


def test_a_load_that_fails_in_a_later_step_fails_alone(rig, page, monkeypatch):
    """It was assembled, and cannot be queued whole: no step ends by it, and no other load."""
    slots = rig.stored(1, 2)
    monkeypatch.setattr(captured, "MAX_ROWS", 1)
    both_wait, batches = threading.Event(), captured.CapturedPages.batches

    def assembled_later(pages):
        assert both_wait.wait(60.0)
        return batches(pages)

    with monkeypatch.context() as inside:
        raises_at(inside, Batch, "targets", 2)
        # A quick worker would be done within the call, which then raises.
        inside.setattr(captured.CapturedPages, "batches", assembled_later)
        bad, good = rig.load([10, 11], slots, "bad"), rig.load([12, 13], slots, "good")
        both_wait.set()
        rig.settle(bad, good)
    assert rig.committed == [("bad", False), ("good", True)]
    assert np.array_equal(rig.gate.read([10, 11, 12, 13]), page(0, 0, 1, 2))
    assert rig.controller.has_room("full", 1 << 20)


def test_slots_come_back_when_reserving_them_raises(make_rig, page, monkeypatch):
    rig = make_rig(slots=3)
    rig.stored(1, 2, 3)
    with monkeypatch.context() as inside:
        raises_at(inside, Looking, "run", 1)
        with pytest.raises(MemoryError, match="planted"):
            rig.controller.reserve("full", 2)
    assert rig.hosts["full"].n_free == 2
    assert rig.controller.reserve("full", 2) is not None


def started_by_us():
    return [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-hicache")]


@pytest.fixture
def limited(monkeypatch):
    """`limited(n)`: the system gives `n` more threads, as under a limit of processes. No thread of ours outlives the test."""
    start, threads, queues = threading.Thread.start, [], []

    def queue():
        queues.append(SimpleQueue())
        return queues[-1]

    def limit(n):
        def started(thread):
            if len(threads) == n:
                raise RuntimeError("can't start new thread")
            threads.append(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", started)
        monkeypatch.setattr(workers, "SimpleQueue", queue)

    yield limit
    for each in queues:
        each.put(None)
        each.put(None)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("mode", "given"), [("future", 0), ("threadpool", 0), ("threadpool", 1)])
def test_threads_that_are_missing_are_an_error_at_start(limited, mode, given):
    limited(given)
    with pytest.raises(ConfigError, match=r"threads of their own.*can't start new thread.*ulimit -u") as caught:
        make_waiting(mode)
    assert caught.value.path == ("hicache", "async_impl")
    assert not started_by_us()


def test_no_step_needs_a_thread_that_is_not_there(rig, page, limited):
    slots = rig.stored(1, 2)
    limited(0)
    rig.settle(rig.load([10, 11], slots))
    assert np.array_equal(rig.gate.read([10, 11]), page(1, 2))


def test_threads_that_never_worked_end(make_rig):
    rig = make_rig()
    assert started_by_us()
    rig.controller.close()
    assert not started_by_us()


def one_of_two_threads(limited):
    test_threads_that_are_missing_are_an_error_at_start(limited, "threadpool", 1)


class TestFaultsOfLoadsThatRaise(PlantedFaultTests):
    faults = (
        Fault(
            "B5: a load that raised stays with the controller",
            test_a_load_without_a_worker_is_gone,
            Replacement(
                HiCacheController, "load", "copy.withdraw()", "self._bytes += self._size(copy); self._loads.append(copy)"
            ),
        ),
        Fault(
            "B5: what a load that raised has queued stays",
            test_a_load_whose_batches_cannot_all_be_queued_is_gone,
            Replacement(HiCacheController, "load", "copy.withdraw()", "pass"),
        ),
        Fault(
            "bytes of a load that raised are in flight",
            test_a_load_whose_batches_cannot_all_be_queued_is_gone,
            Replacement(HiCacheController, "load", "copy.withdraw()", "copy.withdraw(); self._bytes += self._size(copy)"),
        ),
        Fault(
            "a load that fails in a later step is queued in parts",
            test_a_load_that_fails_in_a_later_step_fails_alone,
            Replacement(HiCacheController, "poll", "load.fail(error)", "load.error = error"),
        ),
        Fault(
            "slots of a reservation that raised are nobody's",
            test_slots_come_back_when_reserving_them_raises,
            Replacement(HiCacheController, "reserve", "pool.free(slots)", "pass"),
        ),
        Fault(
            "threads are started when they are needed",
            one_of_two_threads,
            Replacement(Workers, "__init__", 'self._start(f"kvcache-hicache-{number}")', "pass"),
        ),
        Fault(
            "a thread is left when another is missing",
            one_of_two_threads,
            Replacement(Workers, "__init__", "self.close()", "pass"),
        ),
    )
