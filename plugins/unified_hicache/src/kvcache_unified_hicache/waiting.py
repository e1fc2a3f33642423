"""Who waits for copies: the owner thread by looking (`future`), or a few workers by blocking (`threadpool`).

In both, bytes that have to be copied within host memory (assembling scattered pages, packing sparse batches) and memory that is
no longer needed go to a worker. Nothing here dispatches work that touches pool buffers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal, final

import jax

from kvcache_core.errors import ConfigError
from kvcache_unified_hicache.workers import Job, Workers

THREADS = 2
"""That wait or copy, with `threadpool`. More gain nothing: they share the memory bandwidth."""


class Waiting(ABC):
    """Makes jobs. Its threads run from the start; `close` ends every one."""

    @abstractmethod
    def wait_for(self, pages: Any, one: jax.Array) -> Job:
        """A job that ends when the batch `pages`, all of one program, is complete; `one` is one of its arrays."""

    @abstractmethod
    def run(self, work: Callable[[], object]) -> Job:
        """Have a worker do `work`, which touches nothing that others write."""

    @abstractmethod
    def close(self) -> None: ...


def make_waiting(async_impl: Literal["future", "threadpool"]) -> Waiting:
    """Raises ConfigError when the system gives no threads for it: at start, because in a step it would be a request's end."""
    try:
        return Blocking() if async_impl == "threadpool" else Looking()
    except RuntimeError as error:
        raise ConfigError(
            f"copies between L1 and L2 need threads of their own ({THREADS} with threadpool, 1 with future), and the system "
            f"gives no more: {error}; raise the limit of this user or container (ulimit -u, pids.max), or end other threads",
            path=("hicache", "async_impl"),
        ) from error


@final
class Looking(Waiting):
    """`future`: `is_ready()` when asked. One worker copies bytes; it never waits for the device."""

    def __init__(self) -> None:
        self._workers = Workers(1)

    def wait_for(self, pages: Any, one: jax.Array) -> Job:
        return _Array(one)

    def run(self, work: Callable[[], object]) -> Job:
        return self._workers.run(work)

    def close(self) -> None:
        self._workers.close()


@final
class Blocking(Waiting):
    """`threadpool`: workers block until it is done."""

    def __init__(self) -> None:
        self._workers = Workers(THREADS)

    def wait_for(self, pages: Any, one: jax.Array) -> Job:
        return self._workers.run(lambda: jax.block_until_ready(pages))

    def run(self, work: Callable[[], object]) -> Job:
        return self._workers.run(work)

    def close(self) -> None:
        self._workers.close()


@final
class _Array(Job):
    """One array stands for its batch: touching all (60 for SmolLM2) costs the owner thread 200 us when its caches are cold."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._ended = 0.0

    def done(self) -> bool:
        if not self._ended and self._array.is_ready():
            self._ended = perf_counter()
        return self._ended > 0

    def error(self) -> Exception | None:
        try:
            # Complete already: this only brings out what a failed program left in it.
            self._array.block_until_ready()
        except Exception as error:
            return error
        return None

    def ended(self) -> float:
        return self._ended
