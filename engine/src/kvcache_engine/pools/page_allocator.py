"""Hands out page numbers of one pool. It knows nothing about what a page holds or where it is."""

import numpy as np
import numpy.typing as npt

from kvcache_core.errors import DoubleFreeError, IntegrityError


class PageAllocator:
    """Implements the core's `Allocator` for pages 1..total; page 0 is the dummy and is never given out.

    Pages are handed out last freed, first given: a page that was used a moment ago is the likeliest to be in a memory cache.
    """

    __slots__ = ("_free", "_is_free", "_n_free", "_total")

    def __init__(self, total: int) -> None:
        """Raises ValueError unless `total` is positive."""
        if total < 1:
            raise ValueError(f"a pool needs at least one page, not {total}")
        self._total = total
        # A stack with room for every page; entries from `_n_free` on are stale. Four bytes a page, and no object for any of them.
        self._free = np.arange(total, 0, -1, dtype=np.int32)
        self._n_free = total
        self._is_free = np.ones(total + 1, dtype=np.bool_)
        self._is_free[0] = False

    @property
    def total(self) -> int:
        return self._total

    @property
    def n_free(self) -> int:
        return self._n_free

    def alloc(self, n: int) -> npt.NDArray[np.int32] | None:
        """`n` page numbers owned by the caller from now on, or None when fewer are free (none is taken then).

        Raises ValueError for a negative `n`.
        """
        if n < 0:
            raise ValueError(f"cannot allocate {n} pages")
        if n > self._n_free:
            return None
        rest = self._n_free - n
        taken = self._free[rest : self._n_free][::-1].copy()
        self._n_free = rest
        self._is_free[taken] = False
        return taken

    def free(self, indices: npt.NDArray[np.int32]) -> None:
        """Take `indices` (1-D integers) back.

        Raises:
            DoubleFreeError: an index is free already, occurs twice, or was never given out; none is freed then.
        """
        pages = np.asarray(indices)
        n = pages.size
        if not n:
            return
        if pages.ndim != 1 or pages.dtype.kind not in "iu":
            raise TypeError(f"page numbers are a 1-D integer array, not {pages.dtype} of shape {pages.shape}")
        # A list's min and max, argmax and count_nonzero skip numpy's ufunc machinery, which costs more than a scan of few pages
        numbers: list[int] = pages.tolist()
        low, high = min(numbers), max(numbers)
        if low < 1 or high > self._total:
            raise DoubleFreeError(f"page {low if low < 1 else high} was never given out: pages are 1 to {self._total}")
        already = self._is_free[pages]
        if np.count_nonzero(already):
            raise DoubleFreeError(f"page {pages.item(already.argmax())} is free already")
        if len(set(numbers)) != n:
            unique, counts = np.unique(pages, return_counts=True)
            raise DoubleFreeError(f"page {int(unique[counts > 1][0])} occurs twice in one call of free")
        self._is_free[pages] = True
        self._free[self._n_free : self._n_free + n] = pages[::-1]
        self._n_free += n

    def check_integrity(self) -> None:
        """Raises IntegrityError when the list of free pages and the marks disagree."""
        free = self._free[: self._n_free]
        if len(np.unique(free)) != len(free):
            raise IntegrityError("a page is in the free list twice")
        if self._is_free[0] or int(self._is_free.sum()) != len(free) or not self._is_free[free].all():
            raise IntegrityError("the free list and the marks of free pages differ")
