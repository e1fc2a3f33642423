"""The queue between a cache's controller and the host's pool buffers.

A controller only enqueues; what is queued is dispatched in one batch per direction when the host takes its pools, on the thread
that owns the engine (another thread would race the donation of the buffers). Sources are captured at dispatch: afterwards a
gathered page may be rewritten. It does not know what a page is, when a copy is complete, or who asked for it.
"""

import threading
from collections.abc import Mapping
from time import perf_counter

import numpy as np

from kvcache_core.contracts.pools import Buffers, DevicePool, Pages
from kvcache_core.contracts.results import Indices


class QueuedGather:
    """A copy out. After dispatch its pages are rows [start, start + len(indices)) of `pages`, shared with the whole batch.
    `dispatched_at`: `perf_counter()` then."""

    __slots__ = ("cancelled", "component", "dispatched_at", "error", "indices", "pages", "start")

    def __init__(self, component: str, indices: Indices) -> None:
        self.component = component
        self.indices = indices
        self.pages: Pages | None = None
        self.start = 0
        self.dispatched_at = 0.0
        self.error: Exception | None = None
        self.cancelled = False

    @property
    def dispatched(self) -> bool:
        return self.pages is not None or self.error is not None


class QueuedScatter:
    """A copy in. Once `dispatched`, every later program sees the pages: a load is complete then. `dispatched_at`:
    `perf_counter()` at that time."""

    __slots__ = ("cancelled", "component", "dispatched", "dispatched_at", "error", "indices", "pages")

    def __init__(self, component: str, indices: Indices, pages: Pages) -> None:
        self.component = component
        self.indices = indices
        self.pages: Pages | None = pages
        self.dispatched = False
        self.dispatched_at = 0.0
        self.error: Exception | None = None
        self.cancelled = False


class TransferQueue:
    """Built by the host, one per pool set, and given to the cache as `deps.queue`.

    Belongs to the thread that dispatches first: a host may build its engine in one thread and run it in another.
    """

    def __init__(self, pools: Mapping[str, DevicePool]) -> None:
        self._pools = dict(pools)
        self._gathers: list[QueuedGather] = []
        self._scatters: list[QueuedScatter] = []
        self._owner: int | None = None

    def enqueue_gather(self, component: str, indices: Indices) -> QueuedGather:
        """Ask for the content of `indices` as it will be at the next dispatch. Raises KeyError for an unknown component."""
        self._check(component)
        op = QueuedGather(component, indices.copy())
        self._gathers.append(op)
        return op

    def enqueue_scatter(self, component: str, indices: Indices, pages: Pages) -> QueuedScatter:
        """Ask for `pages` (already captured) to be written to `indices`. Raises KeyError for an unknown component."""
        self._check(component)
        op = QueuedScatter(component, indices.copy(), pages)
        self._scatters.append(op)
        return op

    def dispatch(self, buffers: Mapping[str, Buffers]) -> dict[str, Buffers]:
        """Dispatch queued gathers, then queued scatters, and return the buffers that replace `buffers`.

        Gathers come first so that a page which is freed and reloaded in one step is read before it is written. A failing
        operation keeps its exception in `error` and harms no other.

        Raises:
            RuntimeError: called on a thread other than the one that dispatched first.
        """
        self._owner = threading.get_ident() if self._owner is None else self._owner
        if threading.get_ident() != self._owner:
            raise RuntimeError("transfers are dispatched only by the thread that owns the engine")
        result = dict(buffers)
        gathers, self._gathers = self._gathers, []
        for component in dict.fromkeys(op.component for op in gathers):
            self._gather(component, [op for op in gathers if op.component == component and not op.cancelled], result)
        scatters, self._scatters = self._scatters, []
        for op in scatters:
            if op.cancelled:
                continue
            pages, op.pages = op.pages, None
            op.dispatched_at = perf_counter()
            try:
                result[op.component] = self._pools[op.component].scatter(result[op.component], op.indices, pages)
            except Exception as error:
                op.error = error
            op.dispatched = True
        return result

    def pending(self) -> int:
        """Operations waiting for the next dispatch."""
        return len(self._gathers) + len(self._scatters)

    def _gather(self, component: str, ops: list[QueuedGather], buffers: Mapping[str, Buffers]) -> None:
        if not ops:
            return
        now = perf_counter()
        try:
            pages = self._pools[component].gather(buffers[component], np.concatenate([op.indices for op in ops]))
        except Exception as error:
            for op in ops:
                op.error = error
            return
        start = 0
        for op in ops:
            op.start, op.pages, op.dispatched_at = start, pages, now
            start += len(op.indices)

    def _check(self, component: str) -> None:
        if component not in self._pools:
            raise KeyError(f"no device pool for component {component!r}; there are: {', '.join(sorted(self._pools))}")
