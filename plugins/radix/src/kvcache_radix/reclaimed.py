"""What left a tree and goes back to allocators: collected during one operation, so that each allocator is called once."""

import numpy as np

from kvcache_core.contracts.results import NO_INDICES, Indices
from kvcache_radix.node import INDEX_BYTES


class Reclaimed:
    """Indices by (tier, component number). The holder of the object owns them. `lost_tokens`: what was deleted with the start of
    its prefix although it had, or was about to get, a copy outside of device memory."""

    __slots__ = ("_chunks", "lost_tokens")

    def __init__(self) -> None:
        self.lost_tokens = 0
        self._chunks: dict[tuple[int, int], list[bytes]] = {}

    def __bool__(self) -> bool:
        """Whether there is anything to free."""
        return bool(self._chunks)

    def add(self, tier: int, c: int, data: bytes) -> None:
        self._chunks.setdefault((tier, c), []).append(data)

    def count(self, tier: int, c: int) -> int:
        """How many indices were collected."""
        return sum(map(len, self._chunks.get((tier, c), ()))) // INDEX_BYTES

    def take(self, tier: int, c: int) -> Indices:
        """`indices`, which are the caller's alone from now on: they are no longer here."""
        indices = self.indices(tier, c)
        self._chunks.pop((tier, c), None)
        return indices

    def indices(self, tier: int, c: int) -> Indices:
        """int32, in the order of collection; read-only."""
        chunks = self._chunks.get((tier, c))
        return np.frombuffer(b"".join(chunks), dtype=np.int32) if chunks else NO_INDICES
