"""The interface of a host pool, and what both implementations share: slots, who has which, and the order of eviction.

It knows no tree, no scheduler and no engine: a page is any pytree of arrays (`page_layout`), a slot is a number.

Threads: a pool belongs to the thread that uses it first, and every method of it must be called there. None of them waits for a
copy or copies pages itself except where its docstring says so. What may run on other threads is what they return:
`CapturedPages` and `PackJob`, which only read arrays that nobody writes.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import jax
import numpy as np

from kvcache_core.contracts.pools import Pages
from kvcache_core.contracts.results import Indices
from kvcache_core.errors import DoubleFreeError, IntegrityError
from kvcache_unified_hicache.host_pool.captured import CapturedPages
from kvcache_unified_hicache.host_pool.discards import Discards
from kvcache_unified_hicache.host_pool.live_bytes import LiveBytes
from kvcache_unified_hicache.host_pool.pack_job import PackJob
from kvcache_unified_hicache.host_pool.page_layout import PageLayout
from kvcache_unified_hicache.host_pool.spare_memory import SpareMemory

Victims = Callable[[int], Indices]
"""Chooses slots to evict for a shortage of n: the least recently used first, no longer used by whoever chooses them. Fewer than
n when there are no more; more where a holder only gives up several together."""


class HostKVPool(ABC):
    """Slots 1..`total` of one component, each with at most one page. Slot 0 is never given out.

    `struct` is one page without content, as `DevicePool.host_struct` gives it; pages lie in pinned host memory, split over
    devices as it says. `victims` chooses for `evict`; without it the pool keeps an order of its own, in which `put` and `get`
    count as uses. With `discards`, batches that no slot needs any more are left there, to be let go elsewhere; they count as
    alive until then. Without it they go at once.
    """

    def __init__(self, struct: Pages, total: int, victims: Victims | None = None, discards: Discards | None = None) -> None:
        """Raises ValueError unless `total` is positive and `struct` describes pages in pinned host memory."""
        if total < 1:
            raise ValueError(f"a host pool needs at least one slot, not {total}")
        self._layout = PageLayout(struct)
        self._live = LiveBytes()
        self.spare = SpareMemory()
        """Of batches that storage brought: for those that it brings next. Thread safe."""
        self._total = total
        # A stack with room for every slot; entries from `_n_free` on are stale.
        self._free = np.arange(total, 0, -1, dtype=np.int32)
        self._n_free = total
        self._is_free = np.ones(total + 1, np.bool_)
        self._is_free[0] = False
        self._victims = victims
        self._discards = discards
        self._sizes_seen: set[int] = set()
        # Insertion order is the order of eviction: oldest use first. Only slots with content, and none where `victims` decides.
        self._used: dict[int, None] = {}
        self._owner: int | None = None

    @property
    @final
    def total(self) -> int:
        return self._total

    @property
    @final
    def n_free(self) -> int:
        return self._n_free

    @property
    @final
    def page_bytes(self) -> int:
        """Bytes of one page over all devices, replicas included."""
        return self._layout.page_bytes

    @property
    @final
    def budget_bytes(self) -> int:
        """What all slots together take: total x page_bytes."""
        return self._total * self._layout.page_bytes

    @property
    @abstractmethod
    def live_bytes(self) -> int:
        """Bytes of all arrays of this pool that are alive, among them those of freed slots which a `CapturedPages` still
        holds."""

    @final
    def alloc(self, n: int) -> Indices | None:
        """`n` slots, the caller's from now on, or None at once when fewer are free (none is taken then).

        Raises ValueError for a negative `n`.
        """
        self._check_thread()
        if n < 0:
            raise ValueError(f"cannot allocate {n} slots")
        if n > self._n_free:
            return None
        rest = self._n_free - n
        slots = self._free[rest : self._n_free][::-1].copy()
        self._n_free = rest
        # A state is one slot, and numpy takes longer to read a list of one place than to write it.
        self._is_free[slots.item() if n == 1 else slots] = False
        return slots

    @final
    def free(self, slots: Indices) -> None:
        """Take `slots` back. What was captured of them stays as it is.

        Raises:
            DoubleFreeError: a slot is free already, occurs twice, or was never given out; none is freed then.
        """
        self._check_thread()
        n = len(slots)
        if not n:
            return
        # A list's min and max cost less than numpy's for few slots.
        freed: list[int] = slots.tolist()
        low, high = min(freed), max(freed)
        if low < 1 or high > self._total:
            raise DoubleFreeError(f"slot {low if low < 1 else high} was never given out: slots are 1 to {self._total}")
        already = self._is_free[slots]
        if np.count_nonzero(already):
            raise DoubleFreeError(f"slot {slots.item(already.argmax())} is free already")
        if len(set(freed)) != n:
            raise DoubleFreeError("a slot occurs twice in one call of free")
        self._is_free[slots] = True
        self._free[self._n_free : self._n_free + n] = slots[::-1]
        self._n_free += n
        if self._victims is None:
            for slot in freed:
                self._used.pop(slot, None)
        self._drop(slots)

    @final
    def evict(self, n: int) -> Indices:
        """Free `n` slots, as many as there are to evict, and return them in the order of eviction, least recently used first.
        Slots without content are never victims of the pool's own order: a copy into them may be on its way."""
        self._check_thread()
        if self._victims is not None:
            slots = self._victims(n)
        else:
            slots = np.array([slot for slot, _ in zip(self._used, range(n), strict=False)], np.int32)
        self.free(slots)
        return slots

    @final
    def put(self, slots: Indices, pages: Pages, start: int = 0) -> None:
        """Rows [start, start + len(slots)) of the batch `pages` are the content of `slots` from now on; the rest is ignored.

        `pages` is in pinned host memory, as `DevicePool.gather` gives it, and is never written again by its maker. Call it when
        the batch is complete (`is_ready()` of its arrays): an implementation may have to read it.

        Raises ValueError, changing nothing, for a slot that is free or occurs twice, too few rows, or pages of another layout.
        """
        self._check_thread()
        self._enter(slots, pages, start, self._layout.rows_of(pages))

    @final
    def put_gathered(self, slots: Indices, pages: Pages, start: int = 0) -> None:
        """`put` of a batch that the component's own `DevicePool.gather` made. One program makes all batches of as many rows, so
        the layout is looked at for the first of them alone: each look costs the owner thread 50 us."""
        self._check_thread()
        rows = self._layout.one_of(pages).shape[0]
        if rows not in self._sizes_seen:
            self._layout.rows_of(pages)
            self._sizes_seen.add(rows)
        self._enter(slots, pages, start, rows)

    @final
    def one_of(self, pages: Pages) -> jax.Array:
        """One array of a batch, which stands for all: a gather is one program."""
        return self._layout.one_of(pages)

    @final
    def get(self, slots: Indices) -> CapturedPages:
        """Capture the content of `slots`, one to one by position. It stays what it is when the slots are freed or given other
        pages afterwards, even while it is still being copied.

        Raises ValueError for a slot that is free or has no content.
        """
        self._check_thread()
        if len(slots):
            self._check_taken(slots)
        captured = self._get(slots)
        self._touch(slots)
        return captured

    @final
    def _trim_spare(self, limit: int) -> None:
        """Give memory back to the system that is spare beyond `limit` bytes."""
        given_up = self.spare.trim(limit)
        if given_up and self._discards is not None:
            self._discards.add(given_up, 0)  # alive it counted for nobody

    @abstractmethod
    def pack_job(self) -> PackJob | None:
        """Work that brings the memory alive back to the budget, or None when there is none to do. For any thread; one at a time
        is enough. Give it back with `finish_packing`, run or not."""

    @abstractmethod
    def finish_packing(self, job: PackJob) -> None:
        """Let the pages that `job` packed take the place of their batches' rows. Slots that were freed or given another page
        since are left alone, and so is everything when the job did not run."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raises IntegrityError when slots, content and counters disagree. Implementations call `_check_slots` first."""

    @abstractmethod
    def _put(self, slots: Indices, pages: Pages, start: int, n_rows: int) -> None:
        """`put` for slots that are taken and distinct, at least one, and rows [start, start + len(slots)) of `n_rows`."""

    @abstractmethod
    def _get(self, slots: Indices) -> CapturedPages:
        """`get` for slots that are taken; raises ValueError where one has no content."""

    @abstractmethod
    def _drop(self, slots: Indices) -> None:
        """The content of these slots, if any, is no longer wanted."""

    @final
    def _enter(self, slots: Indices, pages: Pages, start: int, n_rows: int) -> None:
        n = len(slots)
        if n and len(set(self._check_taken(slots))) != n:
            raise ValueError("a slot occurs twice in one call of put")
        if start < 0 or start + n > n_rows:
            raise ValueError(f"{n} slots need rows {start} to {start + n}; the batch has {n_rows}")
        if n:
            self._put(slots, pages, start, n_rows)
            self._touch(slots)

    @final
    def _touch(self, slots: Indices) -> None:
        if self._victims is None:
            used, touched = self._used, slots.tolist()
            for slot in touched:
                used.pop(slot, None)
                used[slot] = None

    @final
    def _check_taken(self, slots: Indices) -> list[int]:
        """At least one slot, as numbers."""
        numbers: list[int] = slots.tolist()
        low, high = min(numbers), max(numbers)
        if low >= 1 and high <= self._total:
            free = self._is_free[slots]
            if not np.count_nonzero(free):
                return numbers
            wrong = slots.item(free.argmax())
        else:
            wrong = low if low < 1 else high
        raise ValueError(f"slot {wrong} is not allocated; use what alloc() returned and free() did not take back")

    @final
    def _check_thread(self) -> None:
        thread = threading.get_ident()
        if self._owner is None:
            self._owner = thread
        elif self._owner != thread:
            raise RuntimeError(
                "a host pool is used only by the thread that used it first; workers get CapturedPages and PackJobs"
            )

    @final
    def _check_slots(self, with_content: set[int]) -> None:
        """Raises IntegrityError when the free list, its marks and `with_content` (slots that hold a page) disagree."""
        free = set(self._free[: self._n_free].tolist())
        if len(free) != self._n_free or free != set(np.flatnonzero(self._is_free).tolist()):
            raise IntegrityError("the list of free slots and their marks differ")
        if free & with_content:
            raise IntegrityError(f"free slots have content: {sorted(free & with_content)}")
        if self._victims is None and set(self._used) != with_content:
            raise IntegrityError("the order of eviction and the slots with content differ")
