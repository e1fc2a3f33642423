"""Pages of host memory as raw bytes: how storage reads what lies in slots, and how what it brings gets into them.

The seam between the flows to storage and the host pools; tests script another. It knows slots and bytes, no tree and no keys.
"""

from collections.abc import Sequence
from typing import Any, Protocol, final

from kvcache_core.contracts.pools import Pages
from kvcache_core.contracts.results import Indices
from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.page_layout import PageLayout


class CapturedBytes(Protocol):
    """Pages as they were when they were captured, whatever becomes of their slots."""

    def write_into(self, outputs: Sequence[memoryview]) -> None:
        """Write each page's raw bytes, array after array, to the output of the same place. May block; on any one thread."""
        ...


class PageBytes(Protocol):
    """`c` is a component's number. All but `assemble` are called on the owner thread and do not block."""

    def capture(self, c: int, slots: Indices) -> CapturedBytes:
        """The pages in `slots` as they are now; the slots may be freed after the call."""
        ...

    def assemble(self, c: int, payloads: Sequence[memoryview]) -> Any:
        """A batch of pages with these raw bytes, in that order, that `land` takes. Copies them; on any thread."""
        ...

    def land(self, c: int, slots: Indices, batch: Any) -> None:
        """The pages of `batch`, in its order, are the content of `slots` from now on."""
        ...


@final
class HostPageBytes(PageBytes):
    """Over the host pools, by component number; `structs`: one page of each, as `DevicePool.host_struct` gives it."""

    def __init__(self, pools: Sequence[HostKVPool], structs: Sequence[Pages]) -> None:
        self._pools = tuple(pools)
        self._layouts = [PageLayout(struct) for struct in structs]

    def capture(self, c: int, slots: Indices) -> CapturedBytes:
        return self._pools[c].get(slots)

    def assemble(self, c: int, payloads: Sequence[memoryview]) -> Pages:
        return self._layouts[c].from_payloads(payloads)

    def land(self, c: int, slots: Indices, batch: Pages) -> None:
        self._pools[c].put(slots, batch)
