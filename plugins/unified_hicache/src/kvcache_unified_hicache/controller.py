"""HiCacheController: sole owner of the copies between device (L1) and host (L2).

Everything is dispatched by the thread that owns the engine: copies are only queued here, and the host's `PoolSet.take`
dispatches the queue. `async_impl` chooses who waits: `future` looks at `is_ready()` in `poll`, `threadpool` lets a few workers
block. Copies within host memory are a worker's in both. Commits happen in `poll`, in the order of submission for each direction.
It knows indices and host pools; it knows no tree and no policy.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import jax
import numpy as np

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import DevicePool, PoolSet
from kvcache_core.contracts.results import Indices
from kvcache_core.transfer_queue import TransferQueue
from kvcache_unified_hicache.copies import LoadCopy, WriteCopy
from kvcache_unified_hicache.gathered import GatheredBatches
from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.discards import Discards, let_go
from kvcache_unified_hicache.host_pool.pack_job import PackJob
from kvcache_unified_hicache.transfer import OnCommit, Transfer
from kvcache_unified_hicache.waiting import Waiting, make_waiting
from kvcache_unified_hicache.workers import Job

log = logging.getLogger(__name__)

EvictCallback = Callable[[str, Indices], None]
"""(component, host slots) that were evicted to make room: whoever knew what was in them forgets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerParts:
    """What a controller is made of; `deps.controller` is called with it. `max_bytes_in_flight` bounds the copies under way, where
    there is more than one. `discards`: where the host pools leave what they no longer need."""

    queue: TransferQueue
    pool_set: PoolSet
    device_pools: Mapping[str, DevicePool]
    host_pools: Mapping[str, HostKVPool]
    evict_callback: EvictCallback
    async_impl: Literal["future", "threadpool"]
    max_bytes_in_flight: int
    agree: Callable[[Sequence[int]], Sequence[int]]
    counters: CacheCounters
    discards: Discards = field(default_factory=Discards)


@final
class HiCacheController:
    """Implements `TransferController`. Belongs to the thread that built it.

    Raises ConfigError when its threads cannot be started.
    """

    def __init__(self, parts: ControllerParts) -> None:
        self._parts = parts
        self._waiting: Waiting = make_waiting(parts.async_impl)
        self._batches = GatheredBatches(self._waiting)
        self._packing: dict[str, tuple[PackJob, Job]] = {}
        self._pack_failures: dict[str, int] = {}
        self._polls = 0
        self._writes: deque[WriteCopy] = deque()
        self._loads: deque[LoadCopy] = deque()
        self._bytes = 0
        self._closed = False

    def has_room(self, component: str, n: int) -> bool:
        # One copy alone may be larger than the bound: it would otherwise never be made.
        size = n * self._parts.host_pools[component].page_bytes
        return not self._bytes or self._bytes + size <= self._parts.max_bytes_in_flight

    def reserve(self, component: str, n: int) -> Indices | None:
        """`n` host slots, the caller's from now on; on shortage the host pool evicts, and `evict_callback` is told."""
        pool = self._parts.host_pools[component]
        slots = pool.alloc(n)
        if slots is None:
            evicted = pool.evict(n - pool.n_free)
            if len(evicted):
                self._parts.evict_callback(component, evicted)
            slots = pool.alloc(n)
            try:
                self._let_go()
            except BaseException:
                if slots is not None:
                    pool.free(slots)
                raise
        return slots

    def write(self, host_indices: Indices, device_indices: Indices, component: str, on_commit: OnCommit) -> Transfer:
        """The content of the device pages as it is at the next dispatch goes to the host slots, which stay the caller's.

        Raises ValueError for different numbers of indices.
        """
        _check_pairs(host_indices, device_indices)
        queued = self._parts.queue.enqueue_gather(component, device_indices)
        copy = WriteCopy(component, host_indices, queued, on_commit)
        self._bytes += self._size(copy)
        self._writes.append(copy)
        return copy

    def load(self, device_indices: Indices, host_indices: Indices, component: str, on_commit: OnCommit) -> Transfer:
        """The content of the host slots as it is now goes to the device pages. The slots may be freed after the call.

        Raises ValueError for different numbers of indices, or a slot without content, and what capturing them raises
        (MemoryError); nothing of the load stays then.
        """
        _check_pairs(host_indices, device_indices)
        captured = self._parts.host_pools[component].get(host_indices)
        copy = LoadCopy(component, device_indices, captured, self._parts.queue, self._forget, on_commit)
        try:
            copy.advance(self._waiting)
        except BaseException:
            # Its pages are somebody else's as soon as the caller hears of it: what is queued must not be written to them.
            copy.withdraw()
            raise
        self._bytes += self._size(copy)
        self._loads.append(copy)
        return copy

    def poll(self) -> int:
        self._pack()
        for load in self._loads:
            try:
                load.advance(self._waiting)
            except Exception as error:
                load.fail(error)
        for write in self._writes:
            write.advance(self._batches, self._parts.host_pools[write.component])
            if not write.complete:
                break  # later ones wait for it anyhow
        writes, loads = self._parts.agree([_ready(self._writes), _ready(self._loads)])
        if writes or loads:
            self._commit([self._writes.popleft() for _ in range(writes)], [self._loads.popleft() for _ in range(loads)])
        if writes:
            self._batches.keep([write.pages for write in self._writes])
        self._let_go()
        return writes + loads

    def close(self) -> None:
        """What is in flight is dropped: nobody is told, because the cache ends too."""
        if not self._closed:
            self._closed = True
            self._waiting.close()
            for name, (packing, _) in self._packing.items():
                self._parts.host_pools[name].finish_packing(packing)
            self._packing.clear()
            for load in self._loads:
                load.withdraw()
            self._writes.clear()
            self._loads.clear()
            self._batches.keep(())
            self._parts.discards.take()

    def get_cpu_copy(self, device_indices: Indices, component: str = "full") -> Any:
        """For diagnosis: the content of device pages as the pool's pytree of numpy arrays, [n, ...] each. Waits for it."""
        buffers = self._parts.pool_set.take()
        try:
            pages = self._parts.device_pools[component].gather(buffers[component], device_indices)
        finally:
            self._parts.pool_set.give(buffers)
        return jax.tree.map(lambda array: np.array(array)[: len(device_indices)], pages)

    def load_cpu_copy(self, device_indices: Indices, pages: Any, component: str = "full") -> None:
        """For diagnosis: write what `get_cpu_copy` gave back to device pages."""
        pool = self._parts.device_pools[component]
        struct = pool.host_struct()
        rows = 1 << max(0, len(device_indices) - 1).bit_length()

        def place(array: Any, like: Any) -> jax.Array:
            padded = np.zeros((rows, *array.shape[1:]), array.dtype)
            padded[: len(array)] = array
            return jax.device_put(padded, like.sharding)

        placed = jax.tree.map(place, pages, struct)
        buffers = dict(self._parts.pool_set.take())
        try:
            buffers[component] = pool.scatter(buffers[component], device_indices, placed)
        finally:
            self._parts.pool_set.give(buffers)

    def _pack(self) -> None:
        """Give the workers what the host pools want packed, and take back what is done."""
        self._polls += 1
        for name, pool in self._parts.host_pools.items():
            running = self._packing.get(name)
            if running is None:
                # What failed is tried again, but more and more rarely: memory that is short stays short for a while.
                rest = self._polls % (1 << min(10, self._pack_failures.get(name, 0)))
                if not rest and (packing := pool.pack_job()) is not None:
                    self._packing[name] = packing, self._waiting.run(packing.run)
            elif running[1].done():
                del self._packing[name]
                failures = self._pack_failures.pop(name, 0)
                if (error := running[1].error()) is not None:
                    self._pack_failures[name] = failures + 1
                    if not failures:
                        log.warning(
                            "sparse pages of %r could not be packed and take more memory than they need: %s", name, repr(error)
                        )
                pool.finish_packing(running[0])

    def _let_go(self) -> None:
        """Have a worker let go of what the host pools no longer need. Last in a call, for workers take the interpreter from this
        thread whenever they can; and in the step in which it became useless, so that the next step's pages find the room."""
        if discarded := self._parts.discards.take():
            self._waiting.run(lambda: let_go(discarded))

    def _commit(self, writes: Sequence[WriteCopy], loads: Sequence[LoadCopy]) -> None:
        """A copy that failed on one rank has failed on all of them."""
        landed = self._parts.agree([int(self._land(copy)) for copy in writes] + [int(copy.ok) for copy in loads])
        for copy, ok in zip(writes, landed, strict=False):
            self._finish(copy, "d2h", bool(ok))
        for copy, ok in zip(loads, landed[len(writes) :], strict=True):
            self._finish(copy, "h2d", bool(ok))

    def _land(self, copy: WriteCopy) -> bool:
        if copy.ok:
            try:
                copy.land(self._parts.host_pools[copy.component])
            except Exception as error:
                copy.error = error
        return copy.ok

    def _finish(self, copy: WriteCopy | LoadCopy, direction: str, ok: bool) -> None:
        counters, nbytes = self._parts.counters, self._size(copy)
        self._bytes -= nbytes
        if ok:
            counters.bytes_moved[direction] += nbytes
            seconds: Any = copy.seconds  # a Counter is declared to count whole numbers
            counters.seconds_moving[direction] += seconds
        copy.commit(ok)

    def _forget(self, copy: LoadCopy) -> None:
        """A load was cancelled before it was dispatched."""
        self._loads.remove(copy)
        self._bytes -= self._size(copy)

    def _size(self, copy: WriteCopy | LoadCopy) -> int:
        return len(copy.indices) * self._parts.host_pools[copy.component].page_bytes


def _ready(copies: deque[WriteCopy] | deque[LoadCopy]) -> int:
    """How many at the head are complete: later ones wait for them."""
    n = 0
    for copy in copies:
        if not copy.complete:
            break
        n += 1
    return n


def _check_pairs(host_indices: Indices, device_indices: Indices) -> None:
    if len(host_indices) != len(device_indices):
        raise ValueError(f"pages are copied one to one: {len(host_indices)} host and {len(device_indices)} device indices")
