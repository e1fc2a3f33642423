"""A storage backend in memory that can be told to fail in every way, a clock that stands still, and guards over both."""

import hashlib
import threading

import pytest

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame

PATIENCE = 60
"""Seconds after which a wait that must end counts as one that does not. Never the normal case."""


class ScriptedBackend(HiCacheStorage):
    """`tricks[method]` replaces what a method does: it is called with the honest method, bound to its arguments, and those."""

    def __init__(self):
        self.pages = {}
        self.calls = []
        self.threads = set()
        self.tricks = {}
        self.closed = 0
        self.hanging = threading.Semaphore(0)
        self.released = threading.Event()

    def exists(self, keys):
        return self._call("exists", lambda: [key in self.pages for key in keys], keys)

    def get(self, keys):
        return self._call("get", lambda: [self.pages.get(key) for key in keys], keys)

    def set(self, keys, values):
        def honest():
            self.pages.update((key, bytes(value)) for key, value in zip(keys, values, strict=True))

        self._call("set", honest, keys)

    def delete(self, keys):
        def honest():
            for key in keys:
                self.pages.pop(key, None)

        self._call("delete", honest, keys)

    def close(self):
        self.closed += 1
        self._call("close", lambda: None, ())

    def hang(self, honest, keys):
        """Until the end of the test, or `released`; then it does what it was asked."""
        self.hanging.release()
        assert self.released.wait(PATIENCE)
        return honest()

    def wait_until_hanging(self, n=1):
        for _ in range(n):
            assert self.hanging.acquire(timeout=PATIENCE)

    def called(self, method):
        return [list(keys) for name, keys in self.calls if name == method]

    def _call(self, method, honest, keys):
        self.calls.append((method, tuple(keys)))
        self.threads.add(threading.get_ident())
        trick = self.tricks.get(method)
        return honest() if trick is None else trick(honest, keys)


class ReadsInto(ScriptedBackend):
    """Writes values straight to their places, as many bytes as fit; `tricks["get_into"]` as for the other methods."""

    def get_into(self, keys, buffers):
        def honest():
            return [self._fill(self.pages.get(key), places) for key, places in zip(keys, buffers, strict=True)]

        return self._call("get_into", honest, keys)

    @staticmethod
    def _fill(value, places):
        if value is None:
            return None
        at = 0
        for place in places:
            part = value[at : at + len(place)]
            place[: len(part)] = part
            at += len(part)
        return len(value)


class PlainRoom:
    """Payloads as bytes, or None. `in_place`: it lets them be read to their places, a part for each array."""

    def __init__(self, n, frame, in_place=False):
        self.payloads = [bytearray(frame.payload_bytes) for _ in range(n)]
        self.frame = frame
        self.in_place = in_place
        self.placed = []
        self.threads = set()

    def parts(self, number):
        self.threads.add(threading.get_ident())
        return [memoryview(self.payloads[number])[part] for part in self.frame.slices] if self.in_place else None

    def place(self, number, payload):
        self.threads.add(threading.get_ident())
        self.placed.append(number)
        self.payloads[number][:] = payload

    def finish(self, came):
        self.threads.add(threading.get_ident())
        return [bytes(payload) if ok else None for payload, ok in zip(self.payloads, came, strict=True)]


@pytest.fixture
def room():
    return PlainRoom


@pytest.fixture
def reads_into():
    return ReadsInto


class Clock:
    """Stands still until a test moves it."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Observer:
    def __init__(self):
        self.stored = {}
        self.removed = []
        self.threads = set()

    def cache_built(self, cache):
        raise AssertionError("the guard builds no cache")

    def page_stored(self, key, n_bytes):
        self.stored[key] = n_bytes
        self.threads.add(threading.get_ident())

    def page_removed(self, key):
        self.removed.append(key)
        self.threads.add(threading.get_ident())


class GuardedWorld:
    """A guard over a scripted backend, and pages whose bytes follow from their number."""

    frame = PageFrame((PageArray("k", "bfloat16", (10,)), PageArray("v", "uint8", (12,))))

    def __init__(self, backend=None, **settings):
        self.backend = backend or ScriptedBackend()
        self.clock = Clock()
        self.counters = CacheCounters()
        self.observer = Observer()
        settings = GuardSettings(**{"batch_bytes": 4 * self.frame.file_bytes, "timeout": 5.0, "retry_after": 10.0} | settings)
        self.guard = StorageGuard(self.backend, settings, self.counters, [self.observer], clock=self.clock)
        self.answers = []

    def key(self, number):
        return hashlib.sha256(str(number).encode()).hexdigest()

    def keys(self, numbers):
        return [self.key(number) for number in numbers]

    def payload(self, number):
        return bytes([number]) * self.frame.payload_bytes

    def value(self, number):
        value = self.frame.new_value()
        self.frame.payload_of(value)[:] = self.payload(number)
        self.frame.seal(self.key(number), value)
        return value

    def hold(self, numbers):
        """Pages that the backend has, by no doing of the guard."""
        self.backend.pages |= {self.key(number): bytes(self.value(number)) for number in numbers}

    def start_store(self, numbers):
        numbers = list(numbers)
        make = lambda: [self.value(number) for number in numbers]  # noqa: E731 - as a caller writes it
        return self.guard.store(self.keys(numbers), self.frame.file_bytes, make, self.answers.append)

    def start_fetch(self, numbers):
        """Answers are the payloads as bytes."""
        keys = self.keys(numbers)
        return self.guard.fetch(keys, self.frame, PlainRoom(len(keys), self.frame), self.answers.append)

    def start_exists(self, numbers):
        return self.guard.exists(self.keys(numbers), self.answers.append)

    def settle(self):
        """Poll until nothing is under way; gives the answers since the last time."""
        for _ in range(10_000):
            self.guard.poll()
            if self.guard.idle:
                break
            self.guard.wait(PATIENCE)
        assert self.guard.idle, "it does not end"
        assert self.guard.in_flight == 0
        answers, self.answers = self.answers, []
        return answers

    def store(self, numbers):
        assert self.start_store(numbers)
        (answer,) = self.settle()
        return answer

    def fetch(self, numbers):
        assert self.start_fetch(numbers)
        (answer,) = self.settle()
        return answer

    def exists(self, numbers):
        assert self.start_exists(numbers)
        (answer,) = self.settle()
        return answer

    def overdue(self):
        """Let the deadline of what runs pass."""
        self.clock.now += 5.0

    def probe(self):
        """Let the time until the next probe pass, and the probes end."""
        self.clock.now += 10.0
        before = len(self.backend.calls)
        self.guard.poll()
        for _ in range(10_000):
            if self.guard.state.word != "retrying":
                break
            self.guard.wait(PATIENCE)
            self.guard.poll()
        return [name for name, _ in self.backend.calls[before:]]


@pytest.fixture
def guarded():
    """Makes worlds; what hangs in them is released at the end of the test, and their threads end."""
    worlds = []

    def make(backend=None, **settings):
        world = GuardedWorld(backend, **settings)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.backend.released.set()
        world.backend.tricks.clear()
        world.guard.close(PATIENCE)


def storage_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-storage")]


@pytest.fixture
def threads():
    """The threads that guards have now."""
    return storage_threads


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    for thread in storage_threads():
        thread.join(PATIENCE)
    assert not storage_threads()
