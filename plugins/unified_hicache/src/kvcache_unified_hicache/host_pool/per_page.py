"""The host pool of plan A: immutable arrays that are let go when nothing refers to them.

A batch that a gather brought is kept as it came, and a slot is one of its rows: what is loaded together was mostly written
together, and goes back without another copy. A batch that only a few pages still need would keep all its memory, so when the
arrays alive take more than the slots are worth, the pages of the emptiest batches are packed, each into one array of its own,
and the batches go. Every page is packed at most once in its life.
"""

from collections import Counter
from typing import Final, final

import jax
import numpy as np

from kvcache_core.contracts.pools import Pages
from kvcache_core.contracts.results import Indices
from kvcache_core.errors import IntegrityError
from kvcache_unified_hicache.host_pool.base import HostKVPool, Victims
from kvcache_unified_hicache.host_pool.captured import CapturedPages
from kvcache_unified_hicache.host_pool.discards import Discards
from kvcache_unified_hicache.host_pool.pack_job import PackJob
from kvcache_unified_hicache.host_pool.page_layout import PageSource

PAGES_PER_JOB: Final = 64
SLACK: Final = 10  # the arrays alive may exceed the budget by one part in this many

EMPTY: Final = 0
PACKED: Final = -1


@final
class _Batch:
    """`left`: how many of its pages are still wanted. `n_rows`: what its memory is worth. `given`: the slots that its rows were
    given to, with the first row each time; some may have gone elsewhere since."""

    __slots__ = ("given", "left", "n_rows", "number", "packing", "pages")

    def __init__(self, number: int, pages: Pages, n_rows: int) -> None:
        self.number = number
        self.pages = pages
        self.n_rows = n_rows
        self.left = 0
        self.given: list[tuple[Indices, int]] = []
        self.packing = False


@final
class PerPagePool(HostKVPool):
    """`HostKVPool` of immutable arrays: `put` keeps references, `get` takes them, and neither copies or dispatches anything.

    The exception: a `put` that would leave more than 1.1 x `budget_bytes` alive lets discards go and packs pages itself first.
    Whoever must not be held up runs a `pack_job` on another thread whenever there is one; it begins to give them out at 1.0.
    """

    def __init__(self, struct: Pages, total: int, victims: Victims | None = None, discards: Discards | None = None) -> None:
        super().__init__(struct, total, victims, discards)
        # What a slot holds: EMPTY, PACKED, or row `_row[slot]` of the batch with the number `_home[slot]`.
        self._home = np.zeros(total + 1, np.int64)
        self._row = np.zeros(total + 1, np.int32)
        self._packed: dict[int, jax.Array] = {}
        self._batches: dict[int, _Batch] = {}  # by number
        self._numbers: dict[int, int] = {}  # by identity of the pytree, which the batch keeps alive
        self._last_number = 0
        self._allowed = self.budget_bytes + self.budget_bytes // SLACK

    @property
    def live_bytes(self) -> int:
        return self._live.total

    def pack_job(self) -> PackJob | None:
        self._check_thread()
        waiting = 0 if self._discards is None else self._discards.nbytes
        live = self.live_bytes - waiting
        # What is spare takes only what the arrays leave of the memory that was asked for at the start.
        self._trim_spare(max(0, self._allowed - live))
        excess = live - self.budget_bytes
        if excess <= 0:
            return None
        sparse = [batch for batch in self._batches.values() if batch.left < batch.n_rows and not batch.packing]
        sparse.sort(key=lambda batch: batch.left / batch.n_rows)
        chosen: list[tuple[Pages, dict[int, int]]] = []
        pages = frees = 0
        for batch in sparse:
            if frees >= excess or (pages and pages + batch.left > PAGES_PER_JOB):
                break
            batch.packing = True
            chosen.append((batch.pages, self._rows(batch)))
            pages += batch.left
            frees += (batch.n_rows - batch.left) * self.page_bytes
        return PackJob(self._layout, chosen, frees) if chosen else None

    def finish_packing(self, job: PackJob) -> None:
        self._check_thread()
        for pages, _ in job.batches:
            if (batch := self._find(pages)) is not None:
                batch.packing = False
        for (pages, rows), packed in zip(job.batches, job.packed, strict=False):
            batch = self._find(pages)
            if batch is None:
                continue
            for slot, array in packed.items():
                if self._home[slot] == batch.number and self._row[slot] == rows[slot]:
                    self._home[slot] = PACKED
                    self._packed[slot] = array
                    self._live.watch(array, self.page_bytes)
                    self._leave(batch, 1)
        job.clear()

    def check_integrity(self) -> None:
        self._check_slots(set(np.flatnonzero(self._home).tolist()))
        if set(np.flatnonzero(self._home == PACKED).tolist()) != set(self._packed):
            raise IntegrityError("the packed pages and the slots that refer to them differ")
        counted = Counter(self._home[self._home > 0].tolist())
        if counted != Counter({number: batch.left for number, batch in self._batches.items()}):
            raise IntegrityError("a batch is kept that no slot refers to, or counts slots that refer elsewhere")
        if self._numbers != {id(batch.pages): number for number, batch in self._batches.items()}:
            raise IntegrityError("the batches and their numbers differ")
        for batch in self._batches.values():
            rows = self._rows(batch)
            if len(rows) != batch.left or not all(0 <= row < batch.n_rows for row in rows.values()):
                raise IntegrityError(f"a batch of {batch.n_rows} rows does not know where its {batch.left} pages are")
        rows = sum(batch.n_rows for batch in self._batches.values())
        if self.live_bytes < (len(self._packed) + rows) * self.page_bytes:
            raise IntegrityError(
                f"{len(self._packed)} packed pages and {rows} rows are alive, but only {self.live_bytes} bytes are counted"
            )

    def _put(self, slots: Indices, pages: Pages, start: int, n_rows: int) -> None:
        batch, n = self._find(pages), len(slots)
        if batch is None:
            self._last_number += 1
            batch = _Batch(self._last_number, pages, n_rows)
            self._batches[batch.number] = batch
            self._numbers[id(pages)] = batch.number
            self._live.watch(self._layout.one_of(pages), n_rows * self.page_bytes)
        # First, so that it is not let go when the slots held rows of it already.
        batch.left += n
        if np.count_nonzero(self._home[slots]):
            self._drop(slots)
        batch.given.append((slots.copy(), start))
        self._home[slots] = batch.number
        self._row[slots] = np.arange(start, start + n, dtype=np.int32)
        self._keep_budget()

    def _keep_budget(self) -> None:
        excess = self.live_bytes - self._allowed
        if excess > 0 and self._discards is not None:
            self._discards.take()
            excess = self.live_bytes - self._allowed
        while excess > 0 and (job := self.pack_job()) is not None:
            # Its batches may live a little longer in the hands of others; more packing would not help.
            excess -= job.frees
            try:
                job.run()
            finally:
                self.finish_packing(job)

    def _get(self, slots: Indices) -> CapturedPages:
        homes: list[int] = self._home[slots].tolist()
        if EMPTY in homes:
            raise ValueError(f"slot {slots.item(homes.index(EMPTY))} has no content yet")
        batches, packed = self._batches, self._packed
        rows: list[int] = self._row[slots].tolist()
        return CapturedPages(
            self._layout,
            [
                PageSource(packed[slot], -1) if home == PACKED else PageSource(batches[home].pages, row)
                for slot, home, row in zip(slots.tolist(), homes, rows, strict=True)
            ],
        )

    def _drop(self, slots: Indices) -> None:
        homes = self._home[slots]
        self._home[slots] = EMPTY
        first = homes.item(0)
        if first > EMPTY and not np.count_nonzero(homes != first):
            self._leave(self._batches[first], len(slots))
            return
        for home, n in Counter(homes.tolist()).items():
            if home == PACKED:
                for slot in slots[homes == PACKED].tolist():
                    del self._packed[slot]
            elif home != EMPTY:
                self._leave(self._batches[home], n)

    def _leave(self, batch: _Batch, n: int) -> None:
        """`n` of its pages are no longer wanted."""
        batch.left -= n
        if not batch.left:
            del self._batches[batch.number]
            del self._numbers[id(batch.pages)]
            if self._discards is not None:
                self._discards.add(batch.pages, batch.n_rows * self.page_bytes)

    def _find(self, pages: Pages) -> _Batch | None:
        number = self._numbers.get(id(pages))
        return None if number is None else self._batches[number]

    def _rows(self, batch: _Batch) -> dict[int, int]:
        """Row by slot, of the pages that are still wanted."""
        rows: dict[int, int] = {}
        for slots, start in batch.given:
            at = np.arange(start, start + len(slots), dtype=np.int32)
            here = (self._home[slots] == batch.number) & (self._row[slots] == at)
            rows.update(zip(slots[here].tolist(), at[here].tolist(), strict=True))
        return rows
