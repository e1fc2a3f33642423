"""Everything between the cache and a storage backend that may be slow, wrong, broken or gone.

The owner thread only puts requests in and takes answers out; calls run on workers, each under a deadline. What fails costs its
batch and nothing else. What does not verify is a miss, counted and deleted. A backend that keeps failing is left alone for a
while. Keys, frames and bytes are known here: no tokens, no tree, no jax.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, final

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.storage import HiCacheStorage, Value
from kvcache_core.deps import CacheObserver
from kvcache_unified_hicache.storage.books import Books
from kvcache_unified_hicache.storage.breaker import Breaker, GuardState, Word
from kvcache_unified_hicache.storage.deadlines import close_within
from kvcache_unified_hicache.storage.doubts import Doubts
from kvcache_unified_hicache.storage.fetch_operation import FetchOperation
from kvcache_unified_hicache.storage.operation import DeleteOperation, ExistsOperation, Operation, OperationJob
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.probe import ProbeJob, ProbeOperation
from kvcache_unified_hicache.storage.room import Room
from kvcache_unified_hicache.storage.store_operation import StoreOperation
from kvcache_unified_hicache.storage.workers import Job, NotCalledError, Outcome, Side, Workers

log = logging.getLogger(__name__)

T = TypeVar("T")

KEYS_A_CALL: Final = 1024
"""Keys in one call of `exists`: enough to share a round trip, few enough to end within a deadline."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """`timeout`: seconds for one call into the backend. `batch_bytes`: of pages in one call. `max_bytes_in_flight`: of all
    requests under way. `workers`: calls at a time. `failures_to_open`: failing calls in a row after which the backend is left
    alone for `retry_after` seconds. `max_stuck`: hanging threads that are replaced by new ones. `read_only`: the backend was
    opened so; bad pages stay where they are."""

    timeout: float = 5.0
    batch_bytes: int = 8 << 20
    max_bytes_in_flight: int = 256 << 20
    workers: int = 4
    failures_to_open: int = 3
    retry_after: float = 10.0
    max_stuck: int = 8
    read_only: bool = False


@final
class StorageGuard:
    """All methods are called on the owner thread, and none waits for the backend except `wait` and `close`.

    A request is taken (True), and its `on_done` is called exactly once inside `poll`, or it is refused (False) and nothing is
    called: the backend is left alone, too many bytes are in flight, or the guard is closed. A single request larger than the
    limit is taken while nothing else is in flight.
    """

    def __init__(
        self,
        backend: HiCacheStorage,
        settings: GuardSettings,
        counters: CacheCounters,
        observers: Sequence[CacheObserver],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Owns `backend` from now on: `close` closes it. `clock` decides deadlines and retries, and nothing that ranks share."""
        self._backend = backend
        self._settings = settings
        self._books = Books(counters, observers)
        self._workers = Workers(settings.workers, settings.max_stuck, settings.timeout, clock)
        self._breakers: dict[Side, Breaker] = {
            side: Breaker(settings.failures_to_open, settings.retry_after, clock) for side in ("read", "write")
        }
        self._operations: set[Operation] = set()
        self._removals: dict[Operation, Operation] = {}  # of bad pages, with the fetch that found them
        self._settled: deque[tuple[Job, Outcome]] = deque()
        self._doubts = Doubts()
        self._complained = self._failed = False
        self._in_flight = 0
        self._closed = False
        self._describe()

    @property
    def in_flight(self) -> int:
        """Bytes of pages and keys in requests that have not ended."""
        return self._in_flight

    @property
    def idle(self) -> bool:
        """No request is under way."""
        return not self._operations

    @property
    def stuck(self) -> int:
        """Threads that hang in the backend, each with at most one batch."""
        return self._workers.stuck

    @property
    def state(self) -> GuardState:
        """The worse one of reading and writing; where both are the same, the one with the later error to tell of."""
        states = [breaker.state for breaker in self._breakers.values()]
        worst = max(states, key=lambda state: (list(Word).index(state.word), state.last_error != "", state.since))
        if not self._closed and not self._workers.alive:
            why = f"{self.stuck} calls hang" if self.stuck else "no thread could be started"
            return worst._replace(word=Word.OPEN, last_error=worst.last_error or why)
        return worst

    def refuses(self, side: Side) -> bool:
        """Whether nothing of this kind is taken now, however little is under way: the backend is left alone, every thread hangs
        in it, none can be started, or the guard is closed."""
        return self._closed or not self._workers.alive or not self._breakers[side].closed

    def exists(self, keys: Sequence[str], on_done: Callable[[list[bool]], None]) -> bool:
        """Whether each page is there; False for those whose call failed."""
        return self._admit("read", sum(map(len, keys))) and self._begin(
            ExistsOperation(self._backend, tuple(keys), KEYS_A_CALL, on_done)
        )

    def store(
        self,
        keys: Sequence[str],
        nbytes_each: int,
        make: Callable[[], Sequence[Value]],
        on_done: Callable[[list[bool]], None],
    ) -> bool:
        """Write pages of `nbytes_each` bytes, except those that the backend says it has. `make` runs once on a worker and gives
        the sealed value of each key; what it raises is logged and fails the request. True for the pages that the backend has."""
        if not self._admit("write", nbytes_each * len(keys)):
            return False
        batch = max(1, self._settings.batch_bytes // nbytes_each)
        return self._begin(StoreOperation(self._backend, tuple(keys), nbytes_each, batch, make, on_done, self._doubts))

    def fetch(
        self,
        keys: Sequence[str],
        frame: PageFrame,
        room: Room[T],
        on_done: Callable[[T | None], None],
    ) -> bool:
        """Read and verify pages of `frame` and bring them to `room`, on workers. `on_done` gets what its `finish` gave, or None
        when that raised."""
        if not self._admit("read", frame.file_bytes * len(keys)):
            return False
        batch = max(1, self._settings.batch_bytes // frame.file_bytes)
        return self._begin(FetchOperation(self._backend, tuple(keys), frame, batch, room, on_done, self._doubts))

    def poll(self) -> int:
        """Take what has ended and call the `on_done` of requests that are complete; returns how many were."""
        if self._closed or self._calm:
            return 0
        complete = self._take()
        self._workers.start_lacking()
        if not self._workers.alive:
            # With every thread hanging, what waits would wait for ever.
            self._workers.drop(lambda job: True)
            complete += self._take()
        self._probe()
        self._describe()
        return complete

    def wait(self, timeout: float) -> None:
        """Block until `poll` has something to do, at most `timeout` seconds; not at all while nothing is to come."""
        probes = [due for breaker in self._breakers.values() if (due := breaker.probe_due_in) is not None]
        if not self._settled and not self._closed and (self._operations or probes):
            self._workers.wait(min([timeout, *probes]))

    def close(self, timeout: float) -> None:
        """Drop what is under way without calling anybody, end the threads, close the backend; all that within `timeout` seconds.
        A thread that hangs is left behind; it is a daemon. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._operations.clear()
        self._removals.clear()
        self._settled.clear()
        self._in_flight = 0
        end = time.monotonic() + timeout
        self._workers.close(timeout / 2)
        close_within(max(0.0, end - time.monotonic()), self._backend)

    def _admit(self, side: Side, nbytes: int) -> bool:
        if self.refuses(side):
            return False
        return self._in_flight == 0 or self._in_flight + nbytes <= self._settings.max_bytes_in_flight

    def _begin(self, operation: Operation) -> bool:
        self._operations.add(operation)
        self._in_flight += operation.nbytes
        self._workers.submit(operation.begin())
        return True

    @property
    def _calm(self) -> bool:
        """Nothing is under way, no probe is due and no thread is lacking: the usual step of an engine that hits in memory."""
        quiet = not self._operations and not self._settled and not self._workers.lacking
        return quiet and all(breaker.closed for breaker in self._breakers.values())

    def _take(self) -> int:
        """Account for what has ended; returns how many requests are complete."""
        self._settled += self._workers.settled()
        complete = 0
        while self._settled:
            # Removed first: an on_done that raises must not be called again, nor keep the others from being called.
            job, outcome = self._settled.popleft()
            assert isinstance(job, OperationJob)
            complete += self._account(job, outcome)
        return complete

    def _account(self, job: OperationJob, outcome: Outcome) -> bool:
        """Whether its operation is complete, and delivered."""
        bad = job.account(outcome, self._books)
        if bad and self._breakers["write"].closed and not self._settings.read_only:
            removal = DeleteOperation(self._backend, bad)
            self._removals[removal] = job.operation
            self._begin(removal)
        if job.side is not None:
            if not isinstance(outcome.error, NotCalledError):
                self._judge(job, job.side, outcome.error)
            elif isinstance(job, ProbeJob):
                # It was given up with all that waited: without another one the backend would be left alone for ever.
                self._breakers[job.side].put_off()
        return self._finish(job.operation)

    def _finish(self, operation: Operation) -> bool:
        """Deliver it, once it has ended and what it found bad is removed: who hears of a miss may write the page anew, and
        a late removal would take that page."""
        if not operation.ended or operation in self._removals.values():
            return False
        self._operations.discard(operation)
        self._in_flight -= operation.nbytes
        operation.deliver()
        waiting = self._removals.pop(operation, None)
        if waiting is not None:
            self._finish(waiting)
        return True

    def _judge(self, job: OperationJob, side: Side, error: BaseException | None) -> None:
        breaker, was = self._breakers[side], self._breakers[side].state.word
        text = None if error is None else f"{side}: {_text(error)}"
        if isinstance(job, ProbeJob):
            breaker.probed(text)
        elif text is None:
            breaker.succeeded(f"{side}: {job.complaint}" if job.complaint else "")
            if job.complaint and not self._complained:
                self._complained = True
                log.warning("the storage works, but not for all that it was asked (said once): %s", job.complaint)
        else:
            breaker.failed(text)
            if not self._failed:
                self._failed = True
                log.warning("a call to the storage failed (said once; `misses` and `storage_state` go on counting): %s", text)
        if breaker.state.word is Word.OPEN and was is not Word.OPEN:
            log.warning("the storage is left alone for %g s: %s", self._settings.retry_after, breaker.state.last_error)
            self._workers.drop(lambda job: job.side == side)
            self._settled += self._workers.settled()

    def _probe(self) -> None:
        for side, breaker in self._breakers.items():
            if breaker.probe_due_in == 0 and self._workers.alive:
                breaker.probing()
                # Not one of the operations: nobody waits for it, and `idle` does not depend on it.
                self._workers.submit(ProbeOperation(self._backend, side).begin())

    def _describe(self) -> None:
        word, _, error = self.state
        self._books.state(str(word) if word is Word.OK else f"{word}: {error}")


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
