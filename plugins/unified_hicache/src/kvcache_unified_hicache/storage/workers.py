"""Threads that may hang in a foreign call without taking anything with them.

Not a ThreadPoolExecutor: the interpreter waits for its threads at exit, for ever if one hangs in a dead network mount. These are
daemon threads. One that is overdue is abandoned: its result is nobody's any more, and another thread takes its place, up to a
bound. What a job does is not known here.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, final

from kvcache_core.errors import KVCacheError

Side = Literal["read", "write"]
"""Which way a call into the backend goes."""


class OverdueError(KVCacheError):
    """A call into a storage backend did not return in time; it may still be running. No host sees it: its pages are misses,
    counted as `storage timeout`.

    What to do: find out why the backend hangs, or raise `hicache.storage_timeout` if it is only slow.
    """


class NotCalledError(KVCacheError):
    """A call was given up before it began, because those before it failed. No host sees it: its pages are misses, counted as
    `storage open`.

    What to do: see the last error of the storage, which the counter `storage_state` holds.
    """


class Outcome(NamedTuple):
    """`value` where `error` is None. `seconds`: that the work took."""

    value: Any
    error: BaseException | None
    seconds: float = 0.0


class Job(ABC):
    """A piece of work. `side`: the call into the backend that it is; None for work of our own, which never hangs.
    `urgent`: a request waits for it; it goes before all that is not."""

    side: Side | None = None
    urgent: bool = False

    @abstractmethod
    def work(self) -> Any:
        """On a worker; may raise anything."""

    @abstractmethod
    def settle(self, outcome: Outcome) -> "Sequence[Job]":
        """Called exactly once, with whatever became of it, under the workers' lock: short, and never raises. Gives the jobs that
        may begin now; they go before all that wait, so that what is begun gets done and its memory is freed."""


@final
class Workers:
    """`submit` and `drop` may be called from any thread, the rest on the owner thread."""

    def __init__(self, threads: int, max_stuck: int, timeout: float, clock: Callable[[], float]) -> None:
        """`timeout`: seconds for one call into the backend. `max_stuck`: overdue threads that are replaced."""
        self._threads = threads
        self._max_stuck = max_stuck
        self._timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._end = threading.Condition(self._lock)
        self._urgent: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._running: dict[Job, float] = {}
        self._settled: deque[tuple[Job, Outcome]] = deque()
        self._live: set[threading.Thread] = set()
        self._stuck: set[threading.Thread] = set()
        self._serving: dict[Job, threading.Thread] = {}
        self._to_start = threads
        self._may_start = True
        self._closed = False
        self.start_lacking()

    @property
    def stuck(self) -> int:
        """Threads that hang in the backend."""
        return len(self._stuck)

    @property
    def alive(self) -> bool:
        """Whether any thread is left to do work, or will be after `start_lacking`."""
        return bool(self._live) or (self._to_start > 0 and self._may_start)

    @property
    def lacking(self) -> bool:
        """Whether there is something to do for `start_lacking`."""
        return self._to_start > 0

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            for job in jobs:
                (self._urgent if job.urgent else self._waiting).append(job)
            self._work.notify(len(jobs))

    def drop(self, unwanted: Callable[[Job], bool]) -> None:
        """Give up waiting jobs: they are settled with NotCalledError."""
        with self._lock:
            # Again, because dropping one may let another begin, which is unwanted as well.
            while dropped := [job for job in (*self._urgent, *self._waiting) if unwanted(job)]:
                self._urgent = deque(job for job in self._urgent if not unwanted(job))
                self._waiting = deque(job for job in self._waiting if not unwanted(job))
                for job in dropped:
                    self._settle(job, Outcome(None, NotCalledError("the storage is left alone for a while")))

    def settled(self) -> list[tuple[Job, Outcome]]:
        """What ended since the last call, in that order. Calls that are overdue end here, and their threads are lost."""
        with self._lock:
            self._abandon_overdue()
            ended = list(self._settled)
            self._settled.clear()
        return ended

    def start_lacking(self) -> None:
        """Start threads for those that `settled` abandoned, and those that could not be started before. Apart from `settled`, so
        that the owner can first decide, by what has just failed, what of the waiting work is still to be done: a new thread would
        hang in the next call at once."""
        with self._lock:
            self._may_start = True
            while self._to_start and self._may_start and not self._closed:
                if len(self._live) < self._threads:
                    try:
                        self._start_thread()
                    except RuntimeError:
                        # A machine that gives no more threads now is a slower storage, and no reason to end a request.
                        self._may_start = False
                        break
                self._to_start -= 1
            self._work.notify_all()

    def wait(self, timeout: float) -> None:
        """Until something has ended or becomes overdue, at most `timeout` seconds. May return without either."""
        with self._lock:
            if self._settled:
                return
            starts = [start for job, start in self._running.items() if job.side is not None]
            # A call that begins during the wait is not overdue before one timeout has passed.
            overdue = min(starts) + self._timeout - self._clock() if starts else self._timeout
            self._end.wait(max(0.0, min(timeout, overdue)))

    def close(self, timeout: float) -> None:
        """Drop what waits and end the threads, waiting for them at most `timeout` seconds. Those that hang are left alone."""
        with self._lock:
            self._closed = True
            self._urgent.clear()
            self._waiting.clear()
            self._settled.clear()
            self._work.notify_all()
            threads = [*self._live]
        end = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="kvcache-storage", daemon=True)
        thread.start()
        self._live.add(thread)

    def _serve(self) -> None:
        me = threading.current_thread()
        while (job := self._next(me)) is not None and self._returned(me, job, _done(job)):
            # Not to be kept while this thread waits for the next: it may hold pages.
            del job

    def _next(self, me: threading.Thread) -> Job | None:
        with self._lock:
            job = None
            while not self._closed and (job := self._take()) is None:
                self._work.wait()
            if self._closed or job is None:
                self._live.discard(me)
                return None
            self._running[job] = self._clock()
            self._serving[job] = me
            return job

    def _take(self) -> Job | None:
        """What may begin now. One thread is left to what is urgent, or a burst of slow writes would hold up every reader."""
        if self._urgent:
            return self._urgent.popleft()
        others = sum(not job.urgent for job in self._running)
        return self._waiting.popleft() if self._waiting and others < max(1, self._threads - 1) else None

    def _returned(self, me: threading.Thread, job: Job, outcome: Outcome) -> bool:
        """Whether this thread goes on."""
        with self._lock:
            if self._running.pop(job, None) is not None:
                del self._serving[job]
                self._settle(job, outcome)
                # It may take something urgent next, and leave what had to wait for it to another.
                self._work.notify()
                return True
            # Abandoned meanwhile. It is as good as new, but its place may have been taken.
            self._stuck.discard(me)
            if self._closed or len(self._live) >= self._threads:
                return False
            self._live.add(me)
            return True

    def _abandon_overdue(self) -> None:
        now = self._clock()
        overdue = [job for job, start in self._running.items() if job.side is not None and now - start >= self._timeout]
        for job in overdue:
            del self._running[job]
            thread = self._serving.pop(job)
            self._live.discard(thread)
            self._stuck.add(thread)
            self._to_start += len(self._stuck) <= self._max_stuck
            self._settle(job, Outcome(None, OverdueError(f"no answer within {self._timeout:g} s"), self._timeout))

    def _settle(self, job: Job, outcome: Outcome) -> None:
        if self._closed:
            return
        following = job.settle(outcome)
        for following_job in reversed(following):
            (self._urgent if following_job.urgent else self._waiting).appendleft(following_job)
        self._work.notify(len(following))
        self._settled.append((job, outcome))
        self._end.notify_all()


def _done(job: Job) -> Outcome:
    begun = time.perf_counter()
    try:
        value, error = job.work(), None
    except BaseException as raised:  # foreign code: even SystemExit must not end this thread
        value, error = None, raised
    return Outcome(value, error, time.perf_counter() - begun)
