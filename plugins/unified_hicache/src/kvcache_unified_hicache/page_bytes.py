"""Pages of host memory as raw bytes: how storage reads what lies in slots, and how what it brings gets into them.

The seam between the flows to storage and the host pools; tests script another. It knows slots and bytes, no tree and no keys.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from kvcache_core.contracts.pools import Pages
from kvcache_core.contracts.results import Indices
from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.batch_room import BatchRoom
from kvcache_unified_hicache.host_pool.page_layout import PageLayout
from kvcache_unified_hicache.storage.room import Room


class CapturedBytes(Protocol):
    """Pages as they were when they were captured, whatever becomes of their slots."""

    def write_into(self, outputs: Sequence[memoryview]) -> None:
        """Write each page's raw bytes, array after array, to the output of the same place. May block; on any one thread."""
        ...


class Arrival(NamedTuple):
    """The answer to one request: which of its pages came, and a batch in which each is at its place; None when none came."""

    came: Sequence[bool]
    batch: Any


class PageBytes(Protocol):
    """`c` is a component's number. Everything is called on the owner thread and does not block."""

    def capture(self, c: int, slots: Indices) -> CapturedBytes:
        """The pages in `slots` as they are now; the slots may be freed after the call."""
        ...

    def room(self, c: int, n: int) -> Room[Arrival]:
        """Where storage brings the raw bytes of `n` pages to."""
        ...

    def land(self, c: int, slots: Indices, arrival: Arrival) -> None:
        """The pages that came are the content of `slots`, as many, from now on."""
        ...


@final
class HostPageBytes(PageBytes):
    """Over the host pools, by component number; `structs`: one page of each, as `DevicePool.host_struct` gives it."""

    def __init__(self, pools: Sequence[HostKVPool], structs: Sequence[Pages]) -> None:
        self._pools = tuple(pools)
        self._layouts = [PageLayout(struct) for struct in structs]

    def capture(self, c: int, slots: Indices) -> CapturedBytes:
        return self._pools[c].get(slots)

    def room(self, c: int, n: int) -> Room[Arrival]:
        return HostRoom(BatchRoom(self._layouts[c], n, self._pools[c].spare))

    def land(self, c: int, slots: Indices, arrival: Arrival) -> None:
        rows = np.flatnonzero(np.asarray(arrival.came))
        at = 0
        # What did not come leaves a gap between the rows.
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            self._pools[c].put(slots[at : at + len(run)], arrival.batch, run.item(0))
            at += len(run)


@final
class HostRoom(Room[Arrival]):
    """A batch for a host pool."""

    def __init__(self, room: BatchRoom) -> None:
        self._room = room

    def parts(self, number: int) -> Sequence[memoryview] | None:
        return self._room.parts(number)

    def place(self, number: int, payload: memoryview) -> None:
        self._room.place(number, payload)

    def finish(self, came: Sequence[bool]) -> Arrival:
        return Arrival(came, self._room.batch() if any(came) else None)
