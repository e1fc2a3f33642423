"""What an sgl-jax scheduler brings to a cache, in small: slots, requests and their rows, for tests without sgl-jax.

The shapes follow its public classes (`TokenToKVPoolAllocator`, `Req`, `ReqToTokenPool`); unlike them, the allocator notices a
double free. It knows no cache and no jax.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int32]


class SlotPool:
    """Slots page_size..(pages + 1) x page_size - 1 of every rank, given out and taken back by whole pages."""

    def __init__(self, pages_per_rank: int, page_size: int = 1, dp_size: int = 1) -> None:
        self.page_size = page_size
        self.dp_size = dp_size
        self.size_per_rank = pages_per_rank * page_size
        self._free = [list(range(1, pages_per_rank + 1)) for _ in range(dp_size)]

    def available_size(self, dp_rank: int = 0) -> int:
        return len(self._free[dp_rank]) * self.page_size

    def alloc(self, need_size: int, dp_rank: int = 0) -> Slots | None:
        """Whole pages; None when there are too few."""
        assert need_size % self.page_size == 0
        n = need_size // self.page_size
        if n > len(self._free[dp_rank]):
            return None
        pages, self._free[dp_rank] = self._free[dp_rank][:n], self._free[dp_rank][n:]
        return np.array([slot for p in pages for slot in range(p * self.page_size, (p + 1) * self.page_size)], np.int32)

    def free(self, free_index: Slots, dp_rank: int = 0) -> None:
        """Raises AssertionError for a page that is free already."""
        pages = {int(slot) // self.page_size for slot in free_index}
        assert 0 not in pages
        assert not pages & set(self._free[dp_rank]), "double free"
        self._free[dp_rank] += sorted(pages)


class Rows:
    """The page table: a row of slots for each request."""

    def __init__(self, requests: int, context: int) -> None:
        self.req_to_token: Slots = np.zeros((requests, context), np.int32)


@dataclass(eq=False)
class HostRequest:
    """The fields of sgl-jax's `Req` that a cache reads and writes. `committed`: tokens whose KV was computed."""

    origin_input_ids: list[int]
    req_pool_idx: int | None
    last_node: Any
    extra_key: str | None = None
    output_ids: list[int] = field(default_factory=list[int])
    fill_ids: list[int] = field(default_factory=list[int])
    prefix_indices: Slots = field(default_factory=lambda: np.empty(0, np.int32))
    last_matched_prefix_len: int = 0
    cache_protected_len: int = 0
    committed: int = 0

    def pop_committed_kv_cache(self) -> int:
        """`committed` once, 0 from then on."""
        committed, self.committed = self.committed, 0
        return committed
