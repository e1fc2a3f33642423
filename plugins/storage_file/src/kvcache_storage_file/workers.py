"""A bounded pool for the pages of a batch. The caller does the work itself until it has to wait for something; then helpers join.

What comes out of the page cache is ready before another thread is awake; what waits for a disk or a network is worth several.
Daemon threads, because a system call that hangs must not keep the interpreter from ending. It does not know the work.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import final

WAITED = 150e-6
"""Seconds of a batch in which the caller was not computing: then helpers are called."""


@final
class _Job:
    """One batch. Items are taken one by one by whoever has time."""

    def __init__(self, n: int, work: Callable[[int], None]) -> None:
        self._n = n
        self._work = work
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._left = n
        self._all_done = threading.Event()
        self.errors: list[Exception] = []

    def do_one(self) -> bool:
        """Take an item and do it; False when none is left to take."""
        number = next(self._numbers)
        if number >= self._n:
            return False
        try:
            self._work(number)
        except Exception as error:
            self.errors.append(error)
        finally:
            with self._lock:
                self._left -= 1
                if not self._left:
                    self._all_done.set()
        return True

    def wait(self) -> None:
        self._all_done.wait()

    @property
    def left(self) -> int:
        return self._left


@final
class Workers:
    """`helpers` threads at most, started when they are first needed."""

    def __init__(self, helpers: int) -> None:
        self._helpers = helpers
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def each(self, n: int, work: Callable[[int], None]) -> list[Exception]:
        """Call `work` with 0 to n-1, in this thread and perhaps in others. Gives what was raised; every number was tried."""
        job = _Job(n, work)
        called = False
        idle = (now := time.perf_counter()) - time.thread_time()
        while job.do_one():
            start, now = now, time.perf_counter()
            # The second clock is a system call: only after items that were slow enough to have waited.
            if not called and job.left > 1 and now - start > WAITED and now - time.thread_time() - idle > WAITED:
                called = True
                self._call(job, job.left - 1)
        if n:
            job.wait()
        return job.errors

    def close(self, timeout: float) -> None:
        """End the threads; one that hangs in a system call is not waited for longer than `timeout` seconds. Idempotent."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        until = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _call(self, job: _Job, wanted: int) -> None:
        with self._lock:
            if self._closed:
                return
            while len(self._threads) < self._helpers:
                thread = threading.Thread(target=self._help, name=f"kvcache-file-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        for _ in range(min(wanted, self._helpers)):
            self._jobs.put(job)

    def _help(self) -> None:
        while (job := self._jobs.get()) is not None:
            while job.do_one():
                pass
            del job  # it holds the values of its batch, and the next one may be long in coming
