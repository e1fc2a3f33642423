"""A batch on its way from storage: memory laid out so that it becomes a batch of the host pool without another copy.

Pages come one by one, from several threads, each to a row of its own. It knows raw bytes, no keys and no slots.
"""

import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.pools import Pages
from kvcache_unified_hicache.host_pool.page_layout import ALIGNMENT, MAX_ROWS, PageLayout
from kvcache_unified_hicache.host_pool.spare_memory import SpareMemory

PART_BYTES: Final = 4096
"""Of a page, in one array: what is smaller is copied to its place sooner than a reader is told all its places."""


class _Run(NamedTuple):
    """Arrays of one size that follow one another. `span`: their place in a payload. `starts`: where each begins in the memory.
    `size`: bytes of a row in each."""

    span: tuple[int, int]
    starts: range
    size: int


@final
class BatchRoom:
    """Room for `n` pages, at most MAX_ROWS, padded to a power of two with rows of no meaning. `parts` and `place` may be called
    on any threads, for different rows at a time; the memory is taken with the first of these calls."""

    def __init__(self, layout: PageLayout, n: int, memory: SpareMemory) -> None:
        assert 0 < n <= MAX_ROWS
        self._layout = layout
        self._memory = memory
        self._rows = 1 << (n - 1).bit_length()
        self._spans = layout.spans()
        self._runs = self._laid_out()
        self._nbytes = max(run.starts.stop for run in self._runs)
        self._direct = min(end - start for start, end in self._spans) >= PART_BYTES
        self._lock = threading.Lock()
        self._block: npt.NDArray[np.uint8] | None = None

    def parts(self, row: int) -> Sequence[memoryview] | None:
        """Where the arrays of a page belong, writable, in the order of its payload; None where it is better read as a whole and
        placed. Raises MemoryError or OSError when there is no memory."""
        if not self._direct:
            return None
        view = self._taken().data
        starts = [(start + row * run.size, run.size) for run in self._runs for start in run.starts]
        return [view[start : start + size] for start, size in starts]

    def place(self, row: int, payload: memoryview) -> None:
        """Copy the raw bytes of a page to its row. Raises MemoryError or OSError when there is no memory."""
        block = self._taken()
        for run in self._runs:
            start, end = run.span
            self._whole(block, run)[:, row] = np.frombuffer(payload[start:end], np.uint8).reshape(len(run.starts), run.size)

    def batch(self) -> Pages:
        """All rows, those that were never filled included. To be called once, after the last of the other calls."""
        block = self._taken()
        self._block = None  # from now on the batch alone keeps the memory
        sizes = [(start, self._rows * run.size) for run in self._runs for start in run.starts]
        return self._layout.taken_over([block[start : start + size] for start, size in sizes], self._rows)

    def _laid_out(self) -> list[_Run]:
        runs: list[_Run] = []
        at = first = 0
        sizes = [end - start for start, end in self._spans]
        for i, size in enumerate(sizes):
            if i + 1 < len(sizes) and sizes[i + 1] == size:
                continue
            step = -(-self._rows * size // ALIGNMENT) * ALIGNMENT
            n = i + 1 - first
            runs.append(_Run((self._spans[first][0], self._spans[i][1]), range(at, at + n * step, step), size))
            at, first = at + n * step, i + 1
        return runs

    def _whole(self, block: npt.NDArray[np.uint8], run: _Run) -> npt.NDArray[np.uint8]:
        """[arrays, rows, bytes of a row]: a view."""
        shape = (len(run.starts), self._rows, run.size)
        return np.ndarray(shape, np.uint8, block, run.starts.start, (run.starts.step, run.size, 1))

    def _taken(self) -> npt.NDArray[np.uint8]:
        with self._lock:
            if self._block is None:
                self._block = self._memory.take(self._nbytes)
            return self._block
