"""Faults of a guard that a review found: a breaker that never tried again, a start that hung, pages that changed after they were
verified, and commands that removed what they looked at."""

import threading

import pytest

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import PageArray
from kvcache_unified_hicache.storage.answers import checked_values
from kvcache_unified_hicache.storage.breaker import Breaker, Word
from kvcache_unified_hicache.storage.deadlines import close_within, within
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame

KEYS = [f"{n:064x}" for n in range(3)]


class Hanging:
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
        return [None] * len(keys)

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


def test_values_that_their_maker_can_still_change_are_copied():
    """B2: a backend that reads into one buffer again and again."""
    frame = PageFrame((PageArray("a", "uint8", (8,)),))
    buffer = frame.new_value()
    frame.payload_of(buffer)[:] = b"12345678"
    frame.seal(KEYS[0], buffer)
    for given in (buffer, memoryview(buffer)):
        [value] = checked_values([given], 1)
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
