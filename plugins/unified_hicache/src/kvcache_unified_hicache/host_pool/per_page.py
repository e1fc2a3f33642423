"""The host pool of plan A: immutable arrays that are let go when nothing refers to them.

A batch that a gather brought is kept as it came, and a slot is one of its rows: what is loaded together was mostly written
together, and goes back without another copy. A batch that only a few pages still need would keep all its memory, so when the
arrays alive take more than the slots are worth, the pages of the emptiest batches are packed, each into one array of its own,
and the batches go. Every page is packed at most once in its life.
"""

from typing import Final, final

import jax

from kvcache_core.contracts.pools import Pages
from kvcache_core.errors import IntegrityError
from kvcache_unified_hicache.host_pool.base import HostKVPool, Victims
from kvcache_unified_hicache.host_pool.captured import CapturedPages
from kvcache_unified_hicache.host_pool.pack_job import PackJob
from kvcache_unified_hicache.host_pool.page_layout import PageSource

PAGES_PER_JOB: Final = 64
SLACK: Final = 10  # the arrays alive may exceed the budget by one part in this many


class _Batch:
    """`rows`: row by slot, of the pages that are still wanted. `n_rows`: what its memory is worth."""

    __slots__ = ("n_rows", "packing", "pages", "rows")

    def __init__(self, pages: Pages, n_rows: int) -> None:
        self.pages = pages
        self.n_rows = n_rows
        self.rows: dict[int, int] = {}
        self.packing = False


@final
class PerPagePool(HostKVPool):
    """`HostKVPool` of immutable arrays: `put` keeps references, `get` takes them, and neither copies or dispatches anything.

    The exception: a `put` that would leave more than 1.1 x `budget_bytes` alive packs pages itself first, which copies them.
    Whoever must not be held up runs a `pack_job` on another thread whenever there is one; it begins to give them out at 1.0.
    """

    def __init__(self, struct: Pages, total: int, victims: Victims | None = None) -> None:
        super().__init__(struct, total, victims)
        self._batches: dict[int, _Batch] = {}  # by identity of the pytree, which the batch keeps alive
        self._where: list[_Batch | jax.Array | None] = [None] * (total + 1)

    @property
    def live_bytes(self) -> int:
        return self._live.total

    def pack_job(self) -> PackJob | None:
        """Work that brings the memory alive back to the budget, or None when there is none to do. For any thread; one at a time
        is enough. Give it back with `finish_packing`, run or not."""
        self._check_thread()
        excess = self.live_bytes - self.budget_bytes
        if excess <= 0:
            return None
        sparse = [batch for batch in self._batches.values() if len(batch.rows) < batch.n_rows and not batch.packing]
        sparse.sort(key=lambda batch: len(batch.rows) / batch.n_rows)
        chosen: list[tuple[Pages, dict[int, int]]] = []
        pages = frees = 0
        for batch in sparse:
            if frees >= excess or (pages and pages + len(batch.rows) > PAGES_PER_JOB):
                break
            batch.packing = True
            chosen.append((batch.pages, dict(batch.rows)))
            pages += len(batch.rows)
            frees += (batch.n_rows - len(batch.rows)) * self.page_bytes
        return PackJob(self._layout, chosen, frees) if chosen else None

    def finish_packing(self, job: PackJob) -> None:
        """Let the pages that `job` packed take the place of their batches' rows. Slots that were freed or given another page
        since are left alone, and so is everything when the job did not run."""
        self._check_thread()
        for pages, _ in job.batches:
            if (batch := self._batches.get(id(pages))) is not None:
                batch.packing = False
        for (pages, rows), packed in zip(job.batches, job.packed, strict=False):
            batch = self._batches.get(id(pages))
            for slot, array in packed.items():
                if batch is not None and batch.rows.get(slot) == rows[slot]:
                    self._forget(slot)
                    self._where[slot] = array
                    self._live.watch(array, self.page_bytes)
        job.clear()

    def check_integrity(self) -> None:
        self._check_slots({slot for slot, where in enumerate(self._where) if where is not None})
        seen: dict[int, _Batch] = {}
        for slot, where in enumerate(self._where):
            if isinstance(where, _Batch):
                seen[id(where.pages)] = where
                if not 0 <= where.rows.get(slot, -1) < where.n_rows:
                    raise IntegrityError(f"slot {slot} refers to a batch that does not know it")
        if seen != self._batches:
            raise IntegrityError("a batch is kept that no slot refers to, or the other way round")
        for batch in seen.values():
            if any(self._where[slot] is not batch for slot in batch.rows):
                raise IntegrityError("a batch counts a slot that refers elsewhere")
        packed = sum(isinstance(where, jax.Array) for where in self._where)
        rows = sum(batch.n_rows for batch in seen.values())
        if self.live_bytes < (packed + rows) * self.page_bytes:
            raise IntegrityError(f"{packed} packed pages and {rows} rows are alive, but only {self.live_bytes} bytes are counted")

    def _put(self, slots: list[int], pages: Pages, start: int) -> None:
        batch = self._batches.get(id(pages))
        if batch is None:
            batch = _Batch(pages, self._layout.rows_of(pages))
        if start < 0 or start + len(slots) > batch.n_rows:
            raise ValueError(f"{len(slots)} slots need rows {start} to {start + len(slots)}; the batch has {batch.n_rows}")
        if not slots:
            return
        if id(pages) not in self._batches:
            self._batches[id(pages)] = batch
            self._live.watch(jax.tree.leaves(pages)[0], batch.n_rows * self.page_bytes)
        for row, slot in enumerate(slots, start):
            if self._where[slot] is batch:
                batch.rows[slot] = row
                continue
            self._forget(slot)
            self._where[slot] = batch
            batch.rows[slot] = row
        excess = self.live_bytes - self.budget_bytes - self.budget_bytes // SLACK
        while excess > 0 and (job := self.pack_job()) is not None:
            # Its batches may live a little longer in the hands of others; more packing would not help.
            excess -= job.frees
            job.run()
            self.finish_packing(job)

    def _get(self, slots: list[int]) -> CapturedPages:
        sources: list[PageSource] = []
        for slot in slots:
            where = self._where[slot]
            if where is None:
                raise ValueError(f"slot {slot} has no content yet")
            sources.append(PageSource(where.pages, where.rows[slot]) if isinstance(where, _Batch) else PageSource(where, -1))
        return CapturedPages(self._layout, sources)

    def _drop(self, slots: list[int]) -> None:
        for slot in slots:
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        where, self._where[slot] = self._where[slot], None
        if isinstance(where, _Batch):
            del where.rows[slot]
            if not where.rows:
                del self._batches[id(where.pages)]
