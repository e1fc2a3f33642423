"""The one call that may go to a backend that is left alone: whether it answers again. No page of the cache is risked for it."""

import hashlib
from collections.abc import Sequence
from typing import Final, final

from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.answers import checked_flags
from kvcache_unified_hicache.storage.books import Books
from kvcache_unified_hicache.storage.operation import Operation, OperationJob
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.workers import Job, Outcome, Side

PROBE_KEY: Final = hashlib.sha256(b"kvcache storage probe").hexdigest()
"""Always the same key, so that at most one such page is left behind where deleting fails."""


@final
class ProbeOperation(Operation):
    """Reading: a look-up. Writing: a tiny page is stored and deleted."""

    def __init__(self, backend: HiCacheStorage, side: Side) -> None:
        super().__init__(0, 1)
        self._job = _ReadProbe(self, backend) if side == "read" else _WriteProbe(self, backend)

    def begin(self) -> Sequence[Job]:
        return (self._job,)

    def deliver(self) -> None:
        pass


class ProbeJob(OperationJob):
    """The call of a probe."""


@final
class _ReadProbe(ProbeJob):
    side = "read"
    urgent = True

    def __init__(self, operation: Operation, backend: HiCacheStorage) -> None:
        super().__init__(operation)
        self._backend = backend

    def work(self) -> None:
        checked_flags(self._backend.exists([PROBE_KEY]), 1)

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        self.operation.close_jobs()
        return ()


@final
class _WriteProbe(ProbeJob):
    side = "write"

    def __init__(self, operation: Operation, backend: HiCacheStorage) -> None:
        super().__init__(operation)
        self._backend = backend

    def work(self) -> None:
        frame = PageFrame((PageArray("probe", "uint8", (1,)),))
        value = frame.new_value()
        frame.seal(PROBE_KEY, value)
        self._backend.set([PROBE_KEY], [value])
        self._backend.delete([PROBE_KEY])

    def settle(self, outcome: Outcome) -> Sequence[Job]:
        return ()

    def account(self, outcome: Outcome, books: Books) -> Sequence[str]:
        self.operation.close_jobs()
        return ()
