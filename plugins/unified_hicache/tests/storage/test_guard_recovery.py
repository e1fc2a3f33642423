"""Faults of a guard that a review found: a breaker that never tried again, a start that hung, pages that changed after they were
verified, and commands that removed what they looked at."""

import threading

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.answers import checked_values
from kvcache_unified_hicache.storage.breaker import Breaker, Word
from kvcache_unified_hicache.storage.deadlines import close_within, within
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.workers import Workers

KEYS = [f"{n:064x}" for n in range(3)]


class Hanging(HiCacheStorage):
    """Every call waits until `released`; counts those that wait."""

    def __init__(self):
        self.released = threading.Event()
        self.began = threading.Semaphore(0)

    def _call(self):
        self.began.release()
        self.released.wait(60)

    def exists(self, keys):
        self._call()
        return [False] * len(keys)

    def get(self, keys):
        self._call()
        nothing: list[bytes | None] = [None] * len(keys)
        return nothing

    def set(self, keys, values):
        self._call()

    def delete(self, keys):
        self._call()

    def close(self):
        pass


def test_a_probe_that_was_given_up_is_made_again():
    """S1: reads and writes hang until no thread is left, and the probes that wait then are dropped. Later both are tried."""
    backend, now = Hanging(), [0.0]
    settings = GuardSettings(timeout=5, workers=1, max_stuck=1, retry_after=10, failures_to_open=1)
    guard = StorageGuard(backend, settings, CacheCounters(), (), lambda: now[0])
    try:
        for ask in (
            lambda: guard.exists(KEYS[:1], lambda flags: None),
            lambda: guard.store(KEYS[:1], 1, lambda: [b"x"], lambda f: None),
        ):
            if ask():
                assert backend.began.acquire(timeout=10)
            now[0] += 6
            guard.poll()
        for _ in range(20):
            now[0] += 6
            guard.poll()
        assert guard.state.word is not Word.OK
        backend.released.set()
        deadline = threading.Event()
        for _ in range(400):
            now[0] += 6
            guard.poll()
            if guard.state.word is Word.OK:
                break
            deadline.wait(0.01)
        assert guard.state.word is Word.OK
        assert guard.store(KEYS[:1], 1, lambda: [b"x"], lambda flags: None)
    finally:
        backend.released.set()
        guard.close(5)


def test_putting_off_a_probe_opens_the_breaker_again():
    now = [0.0]
    breaker = Breaker(1, 10, lambda: now[0])
    breaker.put_off()
    assert breaker.state.word is Word.OK
    breaker.failed("read: OSError")
    now[0] = 10
    assert breaker.probe_due_in == 0
    breaker.probing()
    assert breaker.probe_due_in is None
    breaker.put_off()
    assert breaker.probe_due_in == 10
    assert breaker.state.last_error == "read: OSError"


def test_only_a_probe_closes_a_breaker_that_is_open():
    """S1: a call that was made before may end well at any time, and calls after it still fail."""
    now = [0.0]
    breaker = Breaker(2, 10, lambda: now[0])
    breaker.failed("read: OSError: one")
    breaker.succeeded()
    breaker.failed("read: OSError: two")
    assert breaker.closed
    breaker.failed("read: OSError: three")
    assert breaker.state.word is Word.OPEN
    breaker.succeeded()
    assert breaker.state.word is Word.OPEN
    now[0] = 10
    breaker.probing()
    breaker.succeeded()
    assert breaker.state.word is Word.RETRYING
    breaker.failed("read: OSError: four")
    assert breaker.state.word is Word.RETRYING
    breaker.probed("read: OSError: five")
    assert breaker.state == (Word.OPEN, 10, "read: OSError: five")
    now[0] = 20
    breaker.probing()
    breaker.probed(None)
    assert breaker.state == (Word.OK, 20, "read: OSError: five")
    breaker.failed("read: OSError: six")
    assert breaker.closed  # counted anew


def test_an_old_call_that_ends_well_while_a_probe_is_under_way_changes_nothing(guarded):
    world = guarded(failures_to_open=1, retry_after=1.0)
    old, probe = threading.Event(), threading.Event()
    begun = {"get": threading.Event(), "exists": threading.Event()}

    def hang(name, until):
        def trick(honest, keys):
            begun[name].set()
            assert until.wait(60)
            return honest()

        return trick

    def fail(honest, keys):
        raise OSError("down")

    world.hold([1])
    world.backend.tricks["get"] = hang("get", old)
    assert world.start_fetch([1]) and begun["get"].wait(60)
    world.backend.tricks["exists"] = fail
    assert world.start_exists([1])
    while world.guard.state.word is not Word.OPEN:
        world.guard.wait(60)
        world.guard.poll()
    world.backend.tricks["exists"] = hang("exists", probe)
    world.clock.now += 1.0
    world.guard.poll()
    try:
        assert begun["exists"].wait(60) and world.guard.state.word is Word.RETRYING
        old.set()
        world.settle()
        assert world.guard.state.word is Word.RETRYING
        assert not world.start_exists([1])
    finally:
        probe.set()
    while world.guard.state.word is Word.RETRYING:
        world.guard.wait(0.01)
        world.guard.poll()
    assert world.guard.state.word is Word.OK


def test_threads_that_could_not_be_started_are_started_later(guarded, monkeypatch):
    """S1: what waits for them is given up meanwhile, not for ever."""
    world = guarded(workers=1, max_stuck=4)
    world.hold([1])
    world.backend.tricks["get"] = world.backend.hang
    assert world.start_fetch([1])
    world.backend.wait_until_hanging()
    assert world.start_exists([1])
    start = threading.Thread.start

    def no_more(self):
        if self.name.startswith("kvcache-storage"):
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        world.overdue()
        assert world.settle() == [None, [False]]
        assert world.guard.refuses("read") and world.guard.refuses("write")
        assert world.guard.state.word is Word.OPEN
        world.guard.poll()
        assert world.guard.refuses("read")
    del world.backend.tricks["get"]
    world.guard.poll()
    assert world.fetch([1]) == [world.payload(1)]
    assert world.store([2]) == [True]


def test_a_guard_that_gets_no_thread_at_the_start_is_closed_to_all_until_it_does(guarded, monkeypatch):
    def no_more(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        world = guarded()
        assert not world.start_store([1])
        world.guard.poll()
        assert world.counters.storage_state == "open: no thread could be started"
    world.guard.poll()
    assert world.store([1]) == [True]
    assert world.counters.storage_state == "ok"


def test_values_that_their_maker_can_still_change_are_copied():
    """B2: a backend that reads into one buffer again and again."""
    frame = PageFrame((PageArray("a", "uint8", (8,)),))
    buffer = frame.new_value()
    frame.payload_of(buffer)[:] = b"12345678"
    frame.seal(KEYS[0], buffer)
    for given in (buffer, memoryview(buffer)):
        [value] = checked_values([given], 1)
        assert value is not None
        payload = frame.open(KEYS[0], value)
        kept = buffer[:]
        buffer[:] = bytes(len(buffer))
        assert bytes(payload) == b"12345678"
        buffer[:] = kept


def test_a_call_that_does_not_come_back_ends_at_its_deadline():
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: never.wait(60))
    never.set()


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(3)])
def test_what_a_call_raises_is_raised(error):
    def fail():
        raise error

    with pytest.raises(Exception, match=r"gone|SystemExit\(3\)"):
        within(5, fail)


@pytest.mark.parametrize(
    ("raises", "said"), [(True, "closing the storage backend failed"), (False, "did not close within 0.05 s")]
)
def test_closing_neither_raises_nor_hangs(raises, said, caplog):
    never = threading.Event()

    class Backend(Hanging):
        def close(self):
            if raises:
                raise OSError("gone")
            never.wait(60)

    close_within(0.05, Backend())
    never.set()
    assert said in caplog.text


class TestFaultsOfRecovery(PlantedFaultTests):
    faults = (
        Fault(
            "an old call's success closes a breaker that is tried again",
            test_an_old_call_that_ends_well_while_a_probe_is_under_way_changes_nothing,
            Replacement(Breaker, "succeeded", "if self.closed:", "if self._state.word is not Word.OPEN:"),
        ),
        Fault(
            "an old call's failure ends the trial",
            test_only_a_probe_closes_a_breaker_that_is_open,
            Replacement(Breaker, "failed", "if self.closed:", "if True:"),
        ),
        Fault(
            "a thread is tried once",
            test_threads_that_could_not_be_started_are_started_later,
            Replacement(Workers, "start_lacking", "self._may_start = False", "self._to_start -= 1; self._may_start = False"),
        ),
        Fault(
            "without a thread everything waits",
            test_a_guard_that_gets_no_thread_at_the_start_is_closed_to_all_until_it_does,
            Replacement(Workers, "alive", "(self._to_start > 0 and self._may_start)", "self._to_start > 0"),
        ),
    )
