"""Who waits for copies: the owner thread by looking (`future`), or a few workers by blocking (`threadpool`).

Nothing here dispatches work that touches pool buffers. A job never raises where it runs; its error is taken by whoever looks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, final

import jax

WORKERS = 2
"""Threads that wait or assemble pages. More gain nothing: they share the memory bandwidth."""


class Job(ABC):
    """Something that ends by itself."""

    @abstractmethod
    def done(self) -> bool:
        """Never blocks."""

    @abstractmethod
    def error(self) -> Exception | None:
        """What went wrong; only asked for once it is done."""


class Waiting(ABC):
    """Makes jobs. `close` ends every thread."""

    @abstractmethod
    def wait_for(self, pages: Any) -> Job:
        """A job that ends when all arrays of the pytree `pages` are complete."""

    @abstractmethod
    def run(self, work: Callable[[], object]) -> Job:
        """A job that does `work`, which copies bytes and touches nothing that others write."""

    @abstractmethod
    def close(self) -> None: ...


def make_waiting(async_impl: Literal["future", "threadpool"]) -> Waiting:
    return Workers() if async_impl == "threadpool" else Looking()


@final
class BatchJobs:
    """One job for each batch of pages, however many copies share it."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        # By identity: the value keeps the batch alive, so that no other can take its place.
        self._jobs: dict[int, tuple[Any, Job]] = {}

    def of(self, pages: Any) -> Job:
        """The job that ends when `pages` is complete."""
        entry = self._jobs.get(id(pages))
        if entry is None:
            entry = self._jobs[id(pages)] = (pages, self._waiting.wait_for(pages))
        return entry[1]

    def keep(self, batches: Sequence[Any]) -> None:
        """Only these are under way still: the others, and their memory, are let go."""
        wanted = set(map(id, batches))
        self._jobs = {key: entry for key, entry in self._jobs.items() if key in wanted}


@final
class Looking(Waiting):
    """`future`: `is_ready()` when asked. Work is done at once, on the owner thread."""

    def wait_for(self, pages: Any) -> Job:
        return _Arrays(jax.tree.leaves(pages))

    def run(self, work: Callable[[], object]) -> Job:
        try:
            work()
        except Exception as error:
            return _Ended(error)
        return _Ended(None)

    def close(self) -> None:
        pass


@final
class Workers(Waiting):
    """`threadpool`: bounded workers block until it is done."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="kvcache-hicache")

    def wait_for(self, pages: Any) -> Job:
        return _Submitted(self._pool.submit(jax.block_until_ready, pages))

    def run(self, work: Callable[[], object]) -> Job:
        return _Submitted(self._pool.submit(work))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


@final
class _Arrays(Job):
    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays
        self._left = list(arrays)

    def done(self) -> bool:
        # From the end: programs fill arrays in order, so an incomplete batch is found out at the first look.
        while self._left and self._left[-1].is_ready():
            self._left.pop()
        return not self._left

    def error(self) -> Exception | None:
        try:
            # Complete already: this only brings out what a failed program left in them.
            jax.block_until_ready(self._arrays)
        except Exception as error:
            return error
        return None


@final
class _Ended(Job):
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def error(self) -> Exception | None:
        return self._error


@final
class _Submitted(Job):
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def error(self) -> Exception | None:
        error = self._future.exception()
        return error if error is None or isinstance(error, Exception) else RuntimeError(repr(error))
