"""A few threads for what must not hold up the owner thread: waiting for arrays, copying bytes, letting memory go.

`concurrent.futures` would do, but handing it a job costs the owner thread four times as much (50 us with cold caches, measured),
once for every batch. It does not know what the jobs do.
"""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import final


class Job(ABC):
    """Something that ends by itself."""

    @abstractmethod
    def done(self) -> bool:
        """Never blocks."""

    @abstractmethod
    def error(self) -> Exception | None:
        """What went wrong; only asked for once it is done."""

    @abstractmethod
    def ended(self) -> float:
        """`perf_counter()` when it ended, or when that was seen; only asked for once it is done."""


@final
class WorkerJob(Job):
    """Work that a thread was given."""

    __slots__ = ("_done", "_ended", "_error", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._error: Exception | None = None
        self._ended = 0.0
        self._done = False

    def done(self) -> bool:
        return self._done

    def error(self) -> Exception | None:
        return self._error

    def ended(self) -> float:
        return self._ended

    def do(self) -> None:
        """Called once, by the thread. Raises nothing: whoever looks takes the error."""
        work, self._work = self._work, None
        assert work is not None
        try:
            work()
        except Exception as error:
            # Without the traceback, whose frames would keep the batches of the work alive.
            self._error = error.with_traceback(None)
        except BaseException as error:  # a thread that ends would leave every later job undone
            self._error = RuntimeError(repr(error))
        self._ended = perf_counter()
        self._done = True


@final
class Workers:
    """`n` threads, from the start: a job that comes later finds them, whatever the system still gives then. `close` ends them; so
    does dropping the object.

    Raises RuntimeError when the system gives no more threads; none of them is left then.
    """

    def __init__(self, n: int) -> None:
        self._jobs: SimpleQueue[WorkerJob | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        try:
            for number in range(n):
                self._start(f"kvcache-hicache-{number}")
        except BaseException:
            self.close()
            raise
        weakref.finalize(self, _stop, self._jobs, n)

    def run(self, work: Callable[[], object]) -> WorkerJob:
        """Have a thread do `work`, after what was given before. After `close` it is never done."""
        job = WorkerJob(work)
        self._jobs.put(job)
        return job

    def close(self) -> None:
        """Wait for what runs; what was not begun never is. Idempotent."""
        if not self._closed.is_set():
            self._closed.set()
            _stop(self._jobs, len(self._threads))
        for thread in self._threads:
            thread.join()

    def _start(self, name: str) -> None:
        # A daemon: a program that ends without closing its cache must end all the same.
        thread = threading.Thread(target=_work, args=(self._jobs, self._closed), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def _work(jobs: "SimpleQueue[WorkerJob | None]", closed: threading.Event) -> None:
    while (job := jobs.get()) is not None:
        if not closed.is_set():
            job.do()
        # What it copied or waited for must not live until the next job comes.
        del job


def _stop(jobs: "SimpleQueue[WorkerJob | None]", n: int) -> None:
    for _ in range(n):
        jobs.put(None)
