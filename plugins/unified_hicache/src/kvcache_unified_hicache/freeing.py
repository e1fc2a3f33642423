"""Gives indices back to where they came from: device pages to the host's allocators, host slots to the host pools."""

from collections.abc import Sequence
from typing import Protocol, final

from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import Indices
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import DEVICE, HOST


class SlotFreeing(Protocol):
    """The part of a host pool that takes slots back."""

    def free(self, slots: Indices) -> None: ...


@final
class Freeing:
    """By component number; `host` is empty without a host tier."""

    def __init__(self, device: Sequence[Allocator], host: Sequence[SlotFreeing]) -> None:
        self._device = tuple(device)
        self._host = tuple(host)

    def pages(self, c: int, indices: Indices) -> None:
        if len(indices):
            self._device[c].free(indices)

    def slots(self, c: int, slots: Indices) -> None:
        if len(slots):
            self._host[c].free(slots)

    def release(self, reclaimed: Reclaimed) -> None:
        """Free all that left a tree."""
        for c in range(len(self._device)):
            self.pages(c, reclaimed.indices(DEVICE, c))
        for c in range(len(self._host)):
            self.slots(c, reclaimed.indices(HOST, c))
