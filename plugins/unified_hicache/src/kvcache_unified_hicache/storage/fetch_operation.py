"""Reading pages: get and verify them in batches on workers, then let the caller unpack them on one."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, final

from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.answers import checked_values
from kvcache_unified_hicache.storage.books import Books, reason_of
from kvcache_unified_hicache.storage.doubts import Doubts
from kvcache_unified_hicache.storage.operation import Operation, OperationJob, report_own_error
from kvcache_unified_hicache.storage.page_frame import BadPageError, PageFrame
from kvcache_unified_hicache.storage.workers import Job, Outcome

T = TypeVar("T")


class _Verified(NamedTuple):
    payloads: list[memoryview | None]
    bad: list[tuple[str, str]]
    """Key and reason of pages that came and were not what was asked for."""


@final
class FetchOperation(Operation, Generic[T]):
    def __init__(
        self,
        backend: HiCacheStorage,
        keys: Sequence[str],
        frame: PageFrame,
        batch: int,
        then: Callable[[list[memoryview | None]], T],
        on_done: Callable[[T | None], None],
        doubts: Doubts,
    ) -> None:
        self.backend = backend
        self.doubts = doubts
        self.frame = frame
        starts = range(0, len(keys), batch)
        super().__init__(frame.file_bytes * len(keys), len(starts) + 1)
        self._payloads: list[memoryview | None] = [None] * len(keys)
        self._missing = len(starts)
        self._jobs = [_Get(self, start, keys[start : start + batch]) for start in starts]
        self._then = then
        self._on_done = on_done
        self.result: T | None = None

    def begin(self) -> Sequence[Job]:
        # Nothing asked for: the caller's part runs at once.
        return self._jobs or self.arrived(0, ())

    def arrived(self, start: int, payloads: Sequence[memoryview | None]) -> Sequence[Job]:
        """A batch is there, or given up (no payloads). Called under the workers' lock; the last one lets `then` begin."""
        self._payloads[start : start + len(payloads)] = payloads
        self._missing -= bool(self._jobs)
        if self._missing:
            return ()
        payloads, self._payloads = self._payloads, []
        return (_Then(self, self._then, payloads),)

    def deliver(self) -> None:
        self._on_done(self.result)


@final
class _Get(OperationJob):
    side = "read"
    urgent = True

    def __init__(self, operation: FetchOperation[Any], start: int, keys: Sequence[str]) -> None:
        super().__init__(operation)
        self._fetch = operation
        self._start = start
        self._keys = keys

    def work(self) -> _Verified:
        values = checked_values(self._fetch.backend.get(self._keys), len(self._keys))
        verified = _Verified([], [])
        for key, value in zip(self._keys, values, strict=True):
            try:
                verified.payloads.append(None if value is None else self._fetch.frame.open(key, value))
            except BadPageError as error:
                verified.payloads.append(None)
                verified.bad.append((key, error.reason))
        return verified

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return self._fetch.arrived(self._start, outcome.value.payloads if outcome.error is None else ())

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        self._fetch.close_jobs()
        if outcome.error is not None:
            books.missed(reason_of(outcome.error), len(self._keys))
            self._fetch.doubts.add(self._keys)
            return ()
        verified: _Verified = outcome.value
        pairs = zip(self._keys, verified.payloads, strict=True)
        self._fetch.doubts.add([key for key, payload in pairs if payload is None])
        arrived = sum(payload is not None for payload in verified.payloads)
        books.moved("fetch", arrived * self._fetch.frame.file_bytes, outcome.seconds)
        gone = len(self._keys) - arrived - len(verified.bad)
        if gone:
            books.missed("page gone", gone)
        for _, reason in verified.bad:
            books.missed(f"bad page: {reason}")
        return [key for key, _ in verified.bad]


@final
class _Then(OperationJob):
    urgent = True

    def __init__(
        self,
        operation: FetchOperation[T],
        then: Callable[[list[memoryview | None]], T],
        payloads: list[memoryview | None],
    ) -> None:
        super().__init__(operation)
        self._fetch: FetchOperation[Any] = operation
        self._then: Callable[[list[memoryview | None]], Any] = then
        self._payloads = payloads

    def work(self) -> Any:
        payloads, self._payloads = self._payloads, []
        return self._then(payloads)

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        if outcome.error is None:
            self._fetch.result = outcome.value
        else:
            report_own_error("unpacking pages from the storage", outcome.error)
        self._fetch.close_jobs()
        return ()
