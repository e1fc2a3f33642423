"""Hands out page numbers of one pool. It knows nothing about what a page holds or where it is."""

import numpy as np
import numpy.typing as npt

from kvcache_core.errors import DoubleFreeError, IntegrityError


class PageAllocator:
    """Implements the core's `Allocator` for pages 1..total; page 0 is the dummy and is never given out.

    Pages are handed out last freed, first given: a page that was used a moment ago is the likeliest to be in a memory cache.
    """

    __slots__ = ("_free", "_is_free", "_total")

    def __init__(self, total: int) -> None:
        """Raises ValueError unless `total` is positive."""
        if total < 1:
            raise ValueError(f"a pool needs at least one page, not {total}")
        self._total = total
        self._free = list(range(total, 0, -1))
        self._is_free = np.ones(total + 1, dtype=np.bool_)
        self._is_free[0] = False

    @property
    def total(self) -> int:
        return self._total

    @property
    def n_free(self) -> int:
        return len(self._free)

    def alloc(self, n: int) -> npt.NDArray[np.int32] | None:
        """`n` page numbers owned by the caller from now on, or None when fewer are free (none is taken then).

        Raises ValueError for a negative `n`.
        """
        if n < 0:
            raise ValueError(f"cannot allocate {n} pages")
        if n > len(self._free):
            return None
        cut = len(self._free) - n
        taken = np.array(self._free[cut:][::-1], dtype=np.int32)
        del self._free[cut:]
        self._is_free[taken] = False
        return taken

    def free(self, indices: npt.NDArray[np.int32]) -> None:
        """Take `indices` (1-D integers) back.

        Raises:
            DoubleFreeError: an index is free already, occurs twice, or was never given out; none is freed then.
        """
        pages = np.asarray(indices)
        if pages.size == 0:
            return
        if pages.ndim != 1 or not np.issubdtype(pages.dtype, np.integer):
            raise TypeError(f"page numbers are a 1-D integer array, not {pages.dtype} of shape {pages.shape}")
        foreign = (pages < 1) | (pages > self._total)
        if foreign.any():
            raise DoubleFreeError(f"page {int(pages[foreign][0])} was never given out: pages are 1 to {self._total}")
        already = self._is_free[pages]
        if already.any():
            raise DoubleFreeError(f"page {int(pages[already][0])} is free already")
        unique, counts = np.unique(pages, return_counts=True)
        if len(unique) != len(pages):
            raise DoubleFreeError(f"page {int(unique[counts > 1][0])} occurs twice in one call of free")
        self._is_free[pages] = True
        self._free.extend(int(page) for page in pages[::-1])

    def check_integrity(self) -> None:
        """Raises IntegrityError when the list of free pages and the marks disagree."""
        if len(set(self._free)) != len(self._free):
            raise IntegrityError("a page is in the free list twice")
        if self._is_free[0] or int(self._is_free.sum()) != len(self._free) or not self._is_free[self._free].all():
            raise IntegrityError("the free list and the marks of free pages differ")
