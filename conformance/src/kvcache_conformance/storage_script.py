"""A storage that does what a script says: which requests end when and in which order, which pages are lost, spoilt or refused.

It stands in for a cache's guard and implements its protocol structurally; pages are values in a dictionary, which outlives a
cache. What is written under one key must be the same content for ever. It knows no tree, no tokens and no host memory.
"""

import io
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar, final

import numpy as np

from kvcache_conformance.claims import require
from kvcache_core.contracts.storage import HiCacheStorage, Value

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Side = Literal["read", "write"]


class Frame(Protocol):
    """The part of a page frame that a guard needs."""

    def open(self, key: str, value: Value) -> memoryview: ...


class Room(Protocol[T_co]):
    """The part of a fetch's room that a guard needs which reads nothing in place."""

    def place(self, number: int, payload: memoryview) -> None: ...

    def finish(self, came: Sequence[bool]) -> T_co: ...


class ScriptedState(NamedTuple):
    word: str
    since: float
    last_error: str


class _Pending(NamedTuple):
    kind: Literal["exists", "store", "fetch"]
    keys: tuple[str, ...]
    end: Callable[[], None]
    payloads: tuple[bytes, ...] = ()


@final
class StorageScript:
    """The dials, the pages, and what happened. It lives longer than a cache: `open_guard` begins a new process on it.

    `fates`: for the next pages stored or fetched, in the order their requests end, whether that succeeds; True when it is empty.
    `allowed`: how many requests the next polls may end; None for all. `picks`: which of the pending ones is next. `refusing`:
    nothing is taken, because too much is under way or, with `word` "open", because the backend is left alone: for `sides`.
    """

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.fates: deque[bool] = deque()
        self.picks: deque[int] = deque()
        self.allowed: int | None = None
        self.refusing = False
        self.word = "ok"
        self.sides: tuple[Side, ...] = ("read", "write")
        self.pending: list[_Pending] = []
        self.ever_stored: set[bytes] = set()
        self.landed: set[tuple[str, int]] = set()
        self.bad = 0
        self.closed = 0
        self.fetched: list[str] = []
        self.waits: list[float] = []
        self._payload_of: dict[str, bytes] = {}

    def open_guard(self, backend: HiCacheStorage) -> "ScriptedGuard":
        """For the cache of a process that begins: nothing of an earlier one is under way."""
        self.pending.clear()
        return ScriptedGuard(self)

    def hold_back(self) -> None:
        self.allowed = 0

    def let_all_through(self) -> None:
        self.allowed, self.refusing, self.word = None, False, "ok"
        self.sides = ("read", "write")

    @property
    def quiet(self) -> bool:
        return not self.pending

    def holds(self, payload: bytes) -> bool:
        """Whether a page with this content was stored, or is on its way."""
        return payload in self.ever_stored or any(payload in request.payloads for request in self.pending)

    def has_now(self, payload: bytes) -> bool:
        """Whether such a page would be found, and found right."""
        return any(payload_of(self.pages[key]) == payload == kept for key, kept in self._payload_of.items() if key in self.pages)

    def lose(self, which: Sequence[int]) -> int:
        """Some pages are gone; returns how many."""
        for number in which:
            if self.pages:
                del self.pages[sorted(self.pages)[number % len(self.pages)]]
        return min(len(which), len(self.pages))

    def exchange(self, first: int, second: int) -> bool:
        """Two pages lie under each other's key."""
        keys = sorted(self.pages)
        if len(keys) < 2 or first % len(keys) == second % len(keys):
            return False
        a, b = keys[first % len(keys)], keys[second % len(keys)]
        self.pages[a], self.pages[b] = self.pages[b], self.pages[a]
        return True

    def submit(self, request: _Pending) -> bool:
        """For the guard."""
        if self.refusing:
            return False
        if request.kind == "fetch":
            self.fetched += request.keys
        self.pending.append(request)
        return True

    def end_some(self) -> int:
        """For the guard: end what the dials let through of what is pending now."""
        n = len(self.pending) if self.allowed is None else min(self.allowed, len(self.pending))
        for _ in range(n):
            pick = self.picks.popleft() % len(self.pending) if self.picks else 0
            self.pending.pop(pick).end()
        return n

    def fate(self) -> bool:
        return self.fates.popleft() if self.fates else True

    def keep(self, key: str, value: Value) -> None:
        payload = payload_of(value)
        require(self._payload_of.setdefault(key, payload) == payload, f"two different pages were stored under {key}")
        self.pages[key] = bytes(value)
        self.ever_stored.add(payload)


@final
class ScriptedGuard:
    """Ends requests in `poll` alone. What a worker would do is done when the request ends, as late as can be."""

    def __init__(self, script: StorageScript) -> None:
        self._script = script
        self._closed = False

    @property
    def state(self) -> ScriptedState:
        return ScriptedState(self._script.word, 0.0, "planted" if self._script.word == "open" else "")

    @property
    def idle(self) -> bool:
        return self._script.quiet

    def refuses(self, side: Side) -> bool:
        return self._script.word == "open" and side in self._script.sides

    def exists(self, keys: Sequence[str], on_done: Callable[[list[bool]], None]) -> bool:
        _check_keys(keys)
        return self._script.submit(_Pending("exists", tuple(keys), lambda: on_done([key in self._script.pages for key in keys])))

    def store(
        self,
        keys: Sequence[str],
        nbytes_each: int,
        make: Callable[[], Sequence[Value]],
        on_done: Callable[[list[bool]], None],
    ) -> bool:
        _check_keys(keys)
        early = [payload_of(value) for value in make()]
        require(len(early) == len(keys) > 0, "a store gives one value for each key")

        def end() -> None:
            values = make()
            require(
                [payload_of(value) for value in values] == early, "a page changed between the request to store it and the write"
            )
            require(all(len(value) == nbytes_each for value in values), "a value has another size than was said")
            answers = [self._script.fate() for _ in keys]
            for key, value, ok in zip(keys, values, answers, strict=True):
                if ok:
                    self._script.keep(key, value)
            on_done(answers)

        return self._script.submit(_Pending("store", tuple(keys), end, tuple(early)))

    def fetch(
        self,
        keys: Sequence[str],
        frame: Frame,
        room: Room[T],
        on_done: Callable[[T | None], None],
    ) -> bool:
        _check_keys(keys)
        require(len(keys) > 0, "a fetch of nothing")

        def end() -> None:
            payloads = [self._page(key, frame) for key in keys]
            for number, payload in enumerate(payloads):
                if payload is not None:
                    room.place(number, payload)
            on_done(room.finish([payload is not None for payload in payloads]))

        return self._script.submit(_Pending("fetch", tuple(keys), end))

    def poll(self) -> int:
        return 0 if self._closed else self._script.end_some()

    def wait(self, timeout: float) -> None:
        self._script.waits.append(timeout)

    def close(self, timeout: float) -> None:
        self._closed = True
        self._script.closed += 1

    def _page(self, key: str, frame: Frame) -> memoryview | None:
        value = self._script.pages.get(key)
        if value is None or not self._script.fate():
            return None
        try:
            return frame.open(key, value)
        except Exception:
            self._script.bad += 1
            del self._script.pages[key]
            return None


def payload_of(value: Value) -> bytes:
    """The raw bytes of a page: every stored value is an .npy file first of all."""
    return np.load(io.BytesIO(bytes(value))).tobytes()


def _check_keys(keys: Sequence[str]) -> None:
    require(all(len(key) == 64 and not key.strip("0123456789abcdef") for key in keys), f"no storage keys: {keys}")
    require(len(set(keys)) == len(keys), "a key occurs twice in one request")
