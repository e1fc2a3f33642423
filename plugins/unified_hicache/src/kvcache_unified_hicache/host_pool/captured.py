"""What `HostKVPool.get` gives: the content of some slots at that moment, whatever becomes of the slots.

It holds immutable arrays and no slots. How it becomes batches that a device pool can scatter is decided here: pages that lie
together go as they lie, without a copy; scattered ones are assembled.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

import jax
import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.pools import SKIP, Pages
from kvcache_core.contracts.results import Indices
from kvcache_unified_hicache.host_pool.page_layout import MAX_ROWS, PageLayout, PageSource

WORTH_A_DISPATCH: Final = 4 << 20
"""Bytes. Dispatching one more scatter costs the owner thread about what copying this much costs another thread."""


class Batch(NamedTuple):
    """`pages`: a batch. `positions`: int32, for each of its rows the place in what was asked for, or SKIP."""

    pages: Pages
    positions: Indices

    def targets(self, indices: Indices) -> Indices:
        """The device pages to scatter the rows to, when the captured pages go to `indices`, one to one by position."""
        return np.where(self.positions == SKIP, np.int32(SKIP), indices[self.positions])


@final
class CapturedPages:
    """The pages of `n` slots. Immutable: any thread may hold and read it; memory lives as long as it does.

    `sources`: for each page, in the order asked for, where it is.
    """

    __slots__ = ("_batches", "_direct", "_layout", "_loose", "_n")

    def __init__(self, layout: PageLayout, sources: Sequence[PageSource]) -> None:
        self._layout = layout
        self._n = len(sources)
        self._batches: tuple[Batch, ...] | None = None
        by_batch: dict[int, list[int]] = {}
        self._loose: list[tuple[int, PageSource]] = []
        for position, source in enumerate(sources):
            if source.row < 0:
                self._loose.append((position, source))
            else:
                by_batch.setdefault(id(source.pages), []).append(position)
        self._direct: list[Batch] = []
        few: list[list[int]] = []
        for positions in by_batch.values():
            pages = sources[positions[0]].pages
            rows = jax.tree.leaves(pages)[0].shape[0]
            whole = 2 * len(positions) >= rows and len({sources[p].row for p in positions}) == len(positions)
            if whole and (len(by_batch) == 1 or len(positions) * layout.page_bytes >= WORTH_A_DISPATCH):
                targets = np.full(rows, SKIP, np.int32)
                targets[[sources[p].row for p in positions]] = positions
                self._direct.append(Batch(pages, targets))
            else:
                few.append(positions)
        self._loose.extend((p, sources[p]) for positions in few for p in positions)

    def __len__(self) -> int:
        return self._n

    @property
    def needs_assembly(self) -> bool:
        """Whether `batches` will copy bytes (milliseconds for 64 pages), and should therefore be called on a worker first."""
        return self._batches is None and bool(self._loose)

    def is_ready(self) -> bool:
        """Whether the copies that made these pages are complete. Never blocks."""
        held = [pages for pages, _ in self._direct] + [source.pages for _, source in self._loose]
        return all(leaf.is_ready() for leaf in jax.tree.leaves(held))

    def batches(self) -> tuple[Batch, ...]:
        """All pages, in batches that `DevicePool.scatter` takes whole, each for `targets(indices)`. The same ones in every
        call.

        Without `needs_assembly` it returns at once. With it, the first call blocks until the pages are there and copies them;
        that call may come from any thread, from one at a time.
        """
        if self._batches is None:
            made = list(self._direct)
            for start in range(0, len(self._loose), MAX_ROWS):
                chunk = self._loose[start : start + MAX_ROWS]
                pages = self._layout.assemble([source for _, source in chunk])
                positions = np.full(1 << (len(chunk) - 1).bit_length(), SKIP, np.int32)
                positions[: len(chunk)] = [position for position, _ in chunk]
                made.append(Batch(pages, positions))
            self._batches = tuple(made)
        return self._batches

    def write_into(self, outputs: Sequence[memoryview]) -> None:
        """Write each page's raw bytes, array after array, to the writable output of the same place (`payload_bytes` of the
        layout): for storage. Blocks until the pages are there, and may run on any thread."""
        sources: dict[int, PageSource] = dict(self._loose)
        for pages, positions in self._direct:
            sources.update((int(p), PageSource(pages, row)) for row, p in enumerate(positions) if p != SKIP)
        self._layout.write_payloads([sources[position] for position in range(self._n)], outputs)

    def to_numpy(self) -> Any:
        """A copy as the same pytree of numpy arrays, [n, ...] each, in the order asked for: for storage and diagnosis. Blocks,
        and may run on any thread."""

        def fill(struct: jax.ShapeDtypeStruct, *arrays: jax.Array) -> npt.NDArray[Any]:
            whole = np.empty((self._n, *struct.shape[1:]), struct.dtype)
            for batch, array in zip(batches, arrays, strict=True):
                wanted = batch.positions != SKIP
                whole[batch.positions[wanted]] = np.asarray(array)[wanted]
            return whole

        batches = self.batches()
        return jax.tree.map(fill, self._layout.struct(1), *[batch.pages for batch in batches])
