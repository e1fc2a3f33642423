"""One request to the storage guard: its jobs and what becomes of their outcomes. The base of exists, store, fetch and delete."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import final

from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.answers import checked_flags
from kvcache_unified_hicache.storage.books import Books, reason_of
from kvcache_unified_hicache.storage.workers import Job, NotCalledError, Outcome

log = logging.getLogger(__name__)


class Operation(ABC):
    """`nbytes`: what it keeps in memory until it has ended. Ends once all of its jobs were accounted for."""

    def __init__(self, nbytes: int, jobs: int) -> None:
        self.nbytes = nbytes
        self._open = jobs

    @property
    @final
    def ended(self) -> bool:
        return self._open == 0

    @final
    def close_jobs(self, n: int = 1) -> None:
        """`n` more of its jobs have ended, or will never begin."""
        self._open -= n

    @abstractmethod
    def begin(self) -> Sequence[Job]:
        """The jobs that may run at once."""

    @abstractmethod
    def deliver(self) -> None:
        """Tell the caller, on the owner thread. Called once, after the last job."""


class OperationJob(Job):
    """A job that belongs to an operation. `complaint`, after `account`: what a call that did not fail had to say all the same."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.complaint = ""

    @abstractmethod
    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        """On the owner thread, after `settle`: write down what happened. Gives keys of bad pages, which are to be deleted."""


@final
class ExistsOperation(Operation):
    """Asks for `keys` in batches of `batch`; keys whose batch failed count as absent."""

    def __init__(self, backend: HiCacheStorage, keys: Sequence[str], batch: int, on_done: Callable[[list[bool]], None]) -> None:
        self._jobs = [_Exists(self, backend, start, keys[start : start + batch]) for start in range(0, len(keys) or 1, batch)]
        super().__init__(sum(map(len, keys)), len(self._jobs))
        self.flags = [False] * len(keys)
        self._on_done = on_done

    def begin(self) -> Sequence[Job]:
        return self._jobs

    def deliver(self) -> None:
        self._on_done(self.flags)


@final
class _Exists(OperationJob):
    side = "read"
    urgent = True

    def __init__(self, operation: ExistsOperation, backend: HiCacheStorage, start: int, keys: Sequence[str]) -> None:
        super().__init__(operation)
        self._flags = operation
        self._backend = backend
        self._start = start
        self._keys = keys

    def work(self) -> list[bool]:
        return checked_flags(self._backend.exists(self._keys), len(self._keys))

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        if outcome.error is None:
            self._flags.flags[self._start : self._start + len(self._keys)] = outcome.value
        else:
            books.missed(reason_of(outcome.error), len(self._keys))
        self.operation.close_jobs()
        return ()


@final
class DeleteOperation(Operation):
    """Removes pages that did not verify. Nobody waits for it; what cannot be deleted is found bad again."""

    def __init__(self, backend: HiCacheStorage, keys: Sequence[str]) -> None:
        super().__init__(sum(map(len, keys)), 1)
        self._job = _Delete(self, backend, keys)

    def begin(self) -> Sequence[Job]:
        return (self._job,)

    def deliver(self) -> None:
        pass


@final
class _Delete(OperationJob):
    side = "write"
    urgent = True  # the fetch that found them waits for it

    def __init__(self, operation: Operation, backend: HiCacheStorage, keys: Sequence[str]) -> None:
        super().__init__(operation)
        self._backend = backend
        self._keys = keys

    def work(self) -> None:
        self._backend.delete(self._keys)

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        if outcome.error is None:
            books.removed(self._keys)
        self.operation.close_jobs()
        return ()


def report_own_error(what: str, error: BaseException) -> None:
    """Our own part of an operation failed: a bug, so it is logged with its traceback; the request goes on without the pages."""
    if not isinstance(error, NotCalledError):
        log.error("%s failed", what, exc_info=(type(error), error, error.__traceback__))
