"""Writing pages: assemble and seal them on a worker, then hand those that the backend lacks to it in batches."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

from kvcache_core.contracts.storage import HiCacheStorage, NotAllStoredError, Value
from kvcache_unified_hicache.storage.answers import checked_flags
from kvcache_unified_hicache.storage.books import Books
from kvcache_unified_hicache.storage.doubts import Doubts
from kvcache_unified_hicache.storage.operation import Operation, OperationJob, report_own_error
from kvcache_unified_hicache.storage.workers import Job, Outcome


class _Written(NamedTuple):
    """`keys`: that were written. `missing`: that the backend has not taken, though it works; why is in `complaint`."""

    keys: Sequence[str]
    missing: frozenset[str] = frozenset()
    complaint: str = ""


@final
class StoreOperation(Operation):
    def __init__(
        self,
        backend: HiCacheStorage,
        keys: Sequence[str],
        nbytes_each: int,
        batch: int,
        make: Callable[[], Sequence[Value]],
        on_done: Callable[[list[bool]], None],
        doubts: Doubts,
    ) -> None:
        self.backend = backend
        self.doubts = doubts
        self.doubted = doubts.among(keys)
        self.keys = keys
        self.nbytes_each = nbytes_each
        self.starts = range(0, len(keys), batch)
        super().__init__(nbytes_each * len(keys), 1 + len(self.starts))
        self.taken = [False] * len(keys)
        self._first = _Make(self, make)
        self._on_done = on_done

    def begin(self) -> Sequence[Job]:
        return (self._first,)

    def batches(self, values: Sequence[Value]) -> Sequence[Job]:
        """One job for each batch; it alone keeps its values, so that their memory goes when it ends."""
        step = self.starts.step
        return [_Set(self, start, self.keys[start : start + step], values[start : start + step]) for start in self.starts]

    def deliver(self) -> None:
        self._on_done(self.taken)


@final
class _Make(OperationJob):
    def __init__(self, operation: StoreOperation, make: Callable[[], Sequence[Value]]) -> None:
        super().__init__(operation)
        self._store = operation
        self._make: Callable[[], Sequence[Value]] | None = make

    def work(self) -> Sequence[Job]:
        # What it captured (pages in the host pool) is let go once they are values.
        make, self._make = self._make, None
        assert make is not None
        values = make()
        if len(values) != len(self._store.keys):
            raise ValueError(f"{len(values)} values were made for {len(self._store.keys)} keys")
        return self._store.batches(values)

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return outcome.value if outcome.error is None else ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        if outcome.error is not None:
            self._store.close_jobs(len(self._store.starts))
            report_own_error("assembling pages for the storage", outcome.error)
        self._store.close_jobs()
        return ()


@final
class _Set(OperationJob):
    side = "write"

    def __init__(self, operation: StoreOperation, start: int, keys: Sequence[str], values: Sequence[Value]) -> None:
        super().__init__(operation)
        self._store = operation
        self._start = start
        self._keys = keys
        self._values = values
        self._unanswered = ""

    def work(self) -> _Written:
        values, self._values = self._values, ()
        there = self._there()
        lacking = [pair for pair in zip(self._keys, values, strict=True) if pair[0] not in there]
        keys = [key for key, _ in lacking]
        try:
            if lacking:
                self._store.backend.set(keys, [value for _, value in lacking])
        except NotAllStoredError as error:
            return _Written([key for key in keys if key not in error.missing], error.missing.intersection(keys), str(error))
        return _Written(keys)

    def _there(self) -> frozenset[str]:
        """What need not be written: another process may have stored it, or this one did before the page left memory. Asking only
        saves work, so whatever is wrong with the answer, the pages are written, and the fault is told as a complaint."""
        asked = [key for key in self._keys if key not in self._store.doubted]
        try:
            flags = checked_flags(self._store.backend.exists(asked), len(asked)) if asked else []
        except Exception as error:
            self._unanswered = f"asked what is there: {type(error).__name__}: {error}"
            return frozenset()
        return frozenset(key for key, there in zip(asked, flags, strict=True) if there)

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        if outcome.error is None:
            written: _Written = outcome.value
            flags = [key not in written.missing for key in self._keys]
            self._store.taken[self._start : self._start + len(flags)] = flags
            self.complaint = written.complaint or self._unanswered
            if written.keys:
                books.moved("store", len(written.keys) * self._store.nbytes_each, outcome.seconds)
                books.stored(written.keys, self._store.nbytes_each)
                self._store.doubts.settle(written.keys)
        self._store.close_jobs()
        return ()
