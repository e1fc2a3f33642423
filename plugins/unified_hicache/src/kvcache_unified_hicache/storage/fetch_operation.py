"""Reading pages: in batches on workers, each page straight to its place where the backend can do that, and verified there."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, final

from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.storage.answers import checked_lengths, checked_values
from kvcache_unified_hicache.storage.books import Books, reason_of
from kvcache_unified_hicache.storage.doubts import Doubts
from kvcache_unified_hicache.storage.operation import Operation, OperationJob, report_own_error
from kvcache_unified_hicache.storage.page_frame import BadPageError, PageFrame
from kvcache_unified_hicache.storage.room import Room
from kvcache_unified_hicache.storage.workers import Job, Outcome

T = TypeVar("T")


class _Read(NamedTuple):
    """`came`: which pages were verified and are at their place. `bad`: key and reason of those that came and were not what was
    asked for. `errors`: of the room, one for each page that it could not take. `again`: places of pages that did not verify when
    they were read to their places."""

    came: list[bool]
    bad: list[tuple[str, str]]
    errors: list[Exception]
    again: list[int]


@final
class FetchOperation(Operation, Generic[T]):
    def __init__(
        self,
        backend: HiCacheStorage,
        keys: Sequence[str],
        frame: PageFrame,
        batch: int,
        room: Room[T],
        on_done: Callable[[T | None], None],
        doubts: Doubts,
    ) -> None:
        self.backend = backend
        self.frame = frame
        self.room = room
        self.doubts = doubts
        starts = range(0, len(keys), batch)
        super().__init__(frame.file_bytes * len(keys), len(starts) + 1)
        self._came = [False] * len(keys)
        self._missing = len(starts)
        self._jobs = [_Get(self, start, keys[start : start + batch]) for start in starts]
        self._on_done = on_done
        self.result: T | None = None

    def begin(self) -> Sequence[Job]:
        # Nothing asked for: the caller's part runs at once.
        return self._jobs or self.arrived(0, ())

    def arrived(self, start: int, came: Sequence[bool]) -> Sequence[Job]:
        """A batch is there, or given up (nothing of it came). Called under the workers' lock; after the last one the room may
        finish."""
        self._came[start : start + len(came)] = came
        self._missing -= bool(self._jobs)
        return () if self._missing else (_Finish(self, self._came),)

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

    def work(self) -> _Read:
        read = _Read([False] * len(self._keys), [], [], [])
        left = self._read_in_place(read)
        if left:
            self._read_values(left, read)
        return read

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return self._fetch.arrived(self._start, outcome.value.came if outcome.error is None else ())

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        self._fetch.close_jobs()
        if outcome.error is not None:
            books.missed(reason_of(outcome.error), len(self._keys))
            self._fetch.doubts.add(self._keys)
            return ()
        read: _Read = outcome.value
        self._fetch.doubts.add([key for key, came in zip(self._keys, read.came, strict=True) if not came])
        arrived = sum(read.came)
        books.moved("fetch", arrived * self._fetch.frame.file_bytes, outcome.seconds)
        gone = len(self._keys) - arrived - len(read.bad) - len(read.errors)
        if gone:
            books.missed(Reasons.PAGE_GONE, gone)
        for _, reason in read.bad:
            books.missed(f"bad page: {reason}")
        if mended := sum(read.came[i] for i in read.again):
            # Once in a while another process writes a page anew between the two. A backend that does it always reads all twice.
            self.complaint = f"get_into gave {mended} pages that do not verify, and get gave them whole"
        if read.errors:
            report_own_error("unpacking pages from the storage", read.errors[0])
        return [key for key, _ in read.bad]

    def _read_in_place(self, read: _Read) -> Sequence[int]:
        """Gives the pages that are still to be read as values: all where that cannot be done, and those that do not verify."""
        every, frame = range(len(self._keys)), self._fetch.frame
        try:
            parts = [part for i in every if (part := self._fetch.room.parts(self._start + i)) is not None]
        except Exception as error:
            read.errors.extend(error for _ in every)
            return ()
        if len(parts) < len(every):
            return every
        pages = [frame.around(part) for part in parts]
        answer = self._fetch.backend.get_into(self._keys, pages)
        if answer is None:
            return every
        for i, nbytes in enumerate(checked_lengths(answer, len(every))):
            if nbytes is not None:
                read.came[i] = frame.holds(self._keys[i], pages[i], nbytes)
                if not read.came[i]:
                    read.again.append(i)
        return read.again

    def _read_values(self, numbers: Sequence[int], read: _Read) -> None:
        keys = [self._keys[i] for i in numbers]
        values = checked_values(self._fetch.backend.get(keys), len(keys))
        for i, key, value in zip(numbers, keys, values, strict=True):
            if value is None:
                continue
            try:
                payload = self._fetch.frame.open(key, value)
            except BadPageError as error:
                read.bad.append((key, error.reason))
                continue
            try:
                self._fetch.room.place(self._start + i, payload)
                read.came[i] = True
            except Exception as error:
                read.errors.append(error)


@final
class _Finish(OperationJob):
    urgent = True

    def __init__(self, operation: FetchOperation[Any], came: Sequence[bool]) -> None:
        super().__init__(operation)
        self._fetch = operation
        self._came = came

    def work(self) -> Any:
        return self._fetch.room.finish(self._came)

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        if outcome.error is None:
            self._fetch.result = outcome.value
        else:
            report_own_error("unpacking pages from the storage", outcome.error)
        self._fetch.close_jobs()
        return ()
