"""Gives indices back to where they came from: device pages to the host's allocators, host slots to the host pools."""

from collections.abc import Sequence
from typing import Protocol, final

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import Indices
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import DEVICE, HOST
from kvcache_unified_hicache.reasons import Reasons


class SlotFreeing(Protocol):
    """The part of a host pool that takes slots back."""

    def free(self, slots: Indices) -> None: ...


@final
class Freeing:
    """By component number; `host` is empty without a host tier."""

    def __init__(self, device: Sequence[Allocator], host: Sequence[SlotFreeing], counters: CacheCounters) -> None:
        self._counters = counters
        self._device = tuple(device)
        self._host = tuple(host)

    def pages(self, c: int, indices: Indices) -> None:
        if len(indices):
            self._device[c].free(indices)

    def slots(self, c: int, slots: Indices) -> None:
        if len(slots):
            self._host[c].free(slots)

    def give_up(self, reclaimed: Reclaimed) -> None:
        """`release`, and count what was lost besides: pages whose prefix lost its start are of no use to anybody."""
        if reclaimed.lost_tokens:
            self._counters.dropped[Reasons.START_LOST] += reclaimed.lost_tokens
        self.release(reclaimed)

    def release(self, reclaimed: Reclaimed) -> None:
        """Free all that left a tree."""
        if not reclaimed:
            return
        for c in range(len(self._device)):
            self.pages(c, reclaimed.indices(DEVICE, c))
        for c in range(len(self._host)):
            self.slots(c, reclaimed.indices(HOST, c))
