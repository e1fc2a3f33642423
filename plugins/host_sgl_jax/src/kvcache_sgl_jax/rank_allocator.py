"""The core's `Allocator` over sgl-jax's slot allocator, for one data-parallel rank. It knows nothing about who holds a page."""

from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.results import Indices
from kvcache_core.errors import DoubleFreeError
from kvcache_sgl_jax.slots import Slots, pages_of, slots_of


class SlotAllocator(Protocol):
    """What is used of sgl-jax's `TokenToKVPoolAllocator` and `PagedTokenToKVPoolAllocator`. Sizes count tokens."""

    page_size: int
    dp_size: int
    size_per_rank: int

    def available_size(self, dp_rank: int = 0) -> int: ...
    def alloc(self, need_size: int, dp_rank: int = 0) -> npt.NDArray[np.int32] | None: ...
    def free(self, free_index: npt.NDArray[np.int32], dp_rank: int = 0) -> None: ...


@final
class RankAllocator:
    """Pages of one rank. The host takes and frees slots of the same allocator for its requests.

    sgl-jax's allocators do not notice a double free, and looking for one here would cost a scan of the free list: only indices
    that cannot exist, or that occur twice in one call, are refused.
    """

    def __init__(self, allocator: SlotAllocator, rank: int) -> None:
        self._allocator = allocator
        self._rank = rank
        self.page_size = allocator.page_size

    @property
    def total(self) -> int:
        return self._allocator.size_per_rank // self.page_size

    @property
    def n_free(self) -> int:
        return self._allocator.available_size(dp_rank=self._rank) // self.page_size

    def alloc(self, n: int) -> Indices | None:
        slots = self._allocator.alloc(n * self.page_size, dp_rank=self._rank)
        return None if slots is None else pages_of(slots, self.page_size)

    def free(self, indices: Indices) -> None:
        """Raises DoubleFreeError, freeing none, for a page outside 1..total or one that occurs twice."""
        if not len(indices):
            return
        if int(indices.min()) < 1 or int(indices.max()) > self.total:
            raise DoubleFreeError(f"pages are 1 to {self.total}; got {int(indices.min())} to {int(indices.max())}")
        if len(np.unique(indices)) != len(indices):
            raise DoubleFreeError("a page occurs twice in one call of free")
        self.free_slots(slots_of(indices, self.page_size))

    def free_slots(self, slots: Slots) -> None:
        """Give back pages by their slots, where the last page of a request is partial."""
        self._allocator.free(slots, dp_rank=self._rank)
