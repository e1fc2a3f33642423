"""Which length a load brings (L2 -> L1), and the device pages for it. It decides; `Loads` carries it out."""

import logging
from collections.abc import Callable, Sequence
from typing import cast, final

from kvcache_core.contracts.component import TreeComponent
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import NO_INDICES, Indices
from kvcache_radix.node import INDEX_BYTES, Node
from kvcache_radix.reach import reach
from kvcache_radix.receipt import TreeLock
from kvcache_radix.store import DEVICE
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.freeing import Freeing
from kvcache_unified_hicache.loads import Loading, Loads
from kvcache_unified_hicache.requests import HookRequests

log = logging.getLogger(__name__)


@final
class LoadPlanning:
    """Sequences are by component number. `evict(component, n)` frees device pages."""

    def __init__(
        self,
        tree: RadixTree,
        components: Sequence[TreeComponent],
        requests: Sequence[HookRequests],
        allocators: Sequence[Allocator],
        loads: Loads,
        freeing: Freeing,
        evict: Callable[[str, int], int],
    ) -> None:
        self._tree = tree
        self._components = components
        self._requests = requests
        self._allocators = allocators
        self._loads = loads
        self._freeing = freeing
        self._evict = evict

    def longest_fitting(self, lock: TreeLock, device_len: int) -> int:
        """The longest usable length of the locked path whose missing pages the device could hold, evicting if need be."""
        tree, store = self._tree, self._tree.store
        room = [a.n_free + e for a, e in zip(self._allocators, store.evictable[DEVICE], strict=True)]
        node: Node | None = lock.node
        while node is not None and node.parent is not None and node.end > device_len:
            length = node.end
            if reach(self._components, node, length, host=True) == length:
                lacking = [self._units(node, length, c) - room[c] for c in range(len(room))]
                if max(lacking) <= 0:
                    return length
                # Of a window, shorter does not mean fewer pages, but others.
                only_pages = len(room) == 1 and self._components[0].prefix_closed
                shorter = length - lacking[0] * tree.page_size
                # Inside a node that is on its way already, shorter saves nothing.
                if only_pages and shorter > max(node.parent.end, device_len) and node in self._loads.needs(node, length, 0)[0]:
                    return shorter
            node = node.parent
        return device_len

    def _units(self, end: Node, length: int, c: int) -> int:
        """Indices of component `c` that a load of `length` has to allocate."""
        nodes, _ = self._loads.needs(end, length, c)
        return sum(len(node.cells[c].host or b"") for node in nodes) // INDEX_BYTES

    def start(self, lock: TreeLock) -> list[Loading] | None:
        """Allocate and start what the lock needs; None, with nothing started, when a component has no room after all."""
        assert lock.node is not None
        waits_for: dict[Loading, None] = {}
        pages: list[Indices] = []
        for c in range(len(self._components)):
            indices = self._alloc(c, self._units(lock.node, lock.length, c))
            if indices is None:
                for taken, got in enumerate(pages):
                    self._freeing.pages(taken, got)
                return None
            pages.append(indices)
        for c, (component, indices) in enumerate(zip(self._components, pages, strict=True)):
            # Only now: what the allocations evicted may have cut these nodes, and left less of a window to bring.
            nodes, joined = self._loads.needs(lock.node, lock.length, c)
            waits_for.update(dict.fromkeys(joined))
            at = 0
            for node in nodes:
                n = len(node.cells[c].host or b"") // INDEX_BYTES
                component.prefetch(node, indices[at : at + n])
                at += n
            self._freeing.pages(c, indices[at:])
            requests = self._requests[c].take_loads()
            if not requests:
                continue
            try:
                waits_for[self._loads.start(c, requests)] = None
            except Exception:
                # What was started ends on its own; a load that cannot read its source is computed instead.
                log.warning("a load of %r from host memory cannot be started", component.name, exc_info=True)
                for later in range(c + 1, len(pages)):
                    self._freeing.pages(later, pages[later])
                return None
        return list(waits_for)

    def _alloc(self, c: int, n: int) -> Indices | None:
        if not n:
            return NO_INDICES
        allocator = self._allocators[c]
        indices = allocator.alloc(n)
        if indices is None and n <= allocator.n_free + self._tree.store.evictable[DEVICE][c]:
            self._evict(self._components[c].name, n - allocator.n_free)
            indices = allocator.alloc(n)
        return indices

    def usable(self, lock: Lock) -> bool:
        """Whether all that the lock covers is on the device."""
        tree_lock = cast(TreeLock, lock)
        node = tree_lock.node
        return node is not None and reach(self._components, node, lock.length, host=False) == lock.length
