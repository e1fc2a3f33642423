"""The two kinds of copies, each from submission to commit. They hold what is needed to go on, and decide nothing."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, final

from kvcache_core.contracts.results import Indices
from kvcache_core.transfer_queue import QueuedGather, QueuedScatter, TransferQueue
from kvcache_unified_hicache.gathered import GatheredBatches
from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.captured import CapturedPages
from kvcache_unified_hicache.transfer import OnCommit, Transfer
from kvcache_unified_hicache.waiting import Waiting
from kvcache_unified_hicache.workers import Job


@final
class WriteCopy(Transfer):
    """Device to host. `indices` are the host slots. Queued, dispatched by the queue, complete when its arrays are."""

    def __init__(self, component: str, indices: Indices, queued: QueuedGather, on_commit: OnCommit) -> None:
        self.component = component
        self.indices = indices
        self.error: Exception | None = None
        self.complete = False
        self.seconds = 0.0
        self._queued = queued
        self._on_commit = on_commit
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    @property
    def ok(self) -> bool:
        return self.complete and self.error is None

    @property
    def dispatched(self) -> bool:
        return self._queued.dispatched

    @property
    def pages(self) -> Any:
        """The batch it is part of, once dispatched."""
        return self._queued.pages

    def cancel(self) -> bool:
        """A copy to the host is never withdrawn: its destination waits for it."""
        return False

    def advance(self, batches: GatheredBatches, pool: HostKVPool) -> None:
        """Look whether the copy is complete; never blocks."""
        queued = self._queued
        if self.complete or not queued.dispatched:
            return
        if queued.error is not None:
            self.complete, self.error = True, queued.error
            return
        batch = batches.of(queued.pages, pool.one_of(queued.pages), queued.dispatched_at)
        if batch.job.done():
            self.complete, self.error, self.seconds = True, batch.job.error(), batch.take_seconds()

    def land(self, pool: HostKVPool) -> None:
        """The slots hold the pages from now on."""
        pool.put_gathered(self.indices, self._queued.pages, self._queued.start)

    def commit(self, ok: bool) -> None:
        self._done = True
        self._on_commit(ok)


@final
class LoadCopy(Transfer):
    """Host to device. `indices` are the device pages. The source is captured; scattered pages are assembled first, then queued;
    complete as soon as all scatters are dispatched, because every later program sees them."""

    def __init__(
        self,
        component: str,
        indices: Indices,
        captured: CapturedPages,
        queue: TransferQueue,
        forget: Callable[["LoadCopy"], None],
        on_commit: OnCommit,
    ) -> None:
        self.component = component
        self.indices = indices
        self.error: Exception | None = None
        self._captured: CapturedPages | None = captured
        self._queue = queue
        self._forget = forget
        self._on_commit = on_commit
        self._job: Job | None = None
        self._scatters: list[QueuedScatter] = []
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    @property
    def dispatched(self) -> bool:
        return any(op.dispatched for op in self._scatters)

    @property
    def complete(self) -> bool:
        return self.error is not None or (self._captured is None and all(op.dispatched for op in self._scatters))

    @property
    def ok(self) -> bool:
        return self.complete and self.error is None and all(op.error is None for op in self._scatters)

    @property
    def seconds(self) -> float:
        """Since the first scatter was dispatched."""
        return perf_counter() - min(op.dispatched_at for op in self._scatters)

    def cancel(self) -> bool:
        if self._done or self.dispatched:
            return False
        self.withdraw()
        self._forget(self)
        self.commit(False)
        return True

    def withdraw(self) -> None:
        """Nothing of it that is not dispatched yet will be."""
        for op in self._scatters:
            op.cancelled = True
        self._captured = None

    def fail(self, error: Exception) -> None:
        """It could not go on: it ends as failed, in its turn, and nothing of it is written."""
        self.withdraw()
        self.error = error

    def advance(self, waiting: Waiting) -> None:
        """Queue the scatters as soon as the source lies in batches, which a worker assembles where need be; never blocks.

        May raise with some of them queued: `withdraw` or `fail` then.
        """
        captured = self._captured
        if captured is None or self.error is not None:
            return
        if captured.needs_assembly:
            if self._job is None:
                self._job = waiting.run(captured.batches)
            if not self._job.done():
                return
            self.error = self._job.error()
            if self.error is not None:
                return
        for batch in captured.batches():
            self._scatters.append(self._queue.enqueue_scatter(self.component, batch.targets(self.indices), batch.pages))
        self._captured = None

    def commit(self, ok: bool) -> None:
        self._done = True
        self._on_commit(ok)
