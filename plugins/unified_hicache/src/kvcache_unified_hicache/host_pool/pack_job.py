"""Moving the last pages of sparse batches into memory of their own: work for another thread between two calls of a pool.

It knows no slots but the numbers it was given, and decides nothing.
"""

from collections.abc import Sequence
from typing import final

import jax

from kvcache_core.contracts.pools import Pages
from kvcache_unified_hicache.host_pool.page_layout import PageLayout


@final
class PackJob:
    """`batches`: for each batch, the rows to pack by slot. `frees`: bytes that will not be needed any more afterwards. Made by
    `PerPagePool.pack_job`, given back with `finish_packing`."""

    __slots__ = ("_layout", "batches", "frees", "packed")

    def __init__(self, layout: PageLayout, batches: Sequence[tuple[Pages, dict[int, int]]], frees: int) -> None:
        self._layout = layout
        self.batches = batches
        self.frees = frees
        self.packed: list[dict[int, jax.Array]] = []

    @property
    def pages(self) -> int:
        """How many pages it copies."""
        return sum(len(rows) for _, rows in self.batches)

    def run(self) -> None:
        """Copy the pages. Blocks until the batches are there; on any thread, once. What it raises (MemoryError) harms nobody:
        give the job back all the same, and the batches stay as they are."""
        packed: list[dict[int, jax.Array]] = []
        for pages, rows in self.batches:
            packed.append(dict(zip(rows, self._layout.pack(pages, list(rows.values())), strict=True)))
        self.packed = packed

    def clear(self) -> None:
        """Let go of everything: a job that was given back must not keep its batches alive."""
        self.batches = ()
        self.packed = []
