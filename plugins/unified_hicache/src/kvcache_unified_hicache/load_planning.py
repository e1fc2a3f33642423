"""Which length a load brings (L2 -> L1), and the device pages for it. It decides; `Loads` carries it out."""

import logging
from collections import Counter
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
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.requests import HookRequests
from kvcache_unified_hicache.transfer import Agree

log = logging.getLogger(__name__)


@final
class LoadPlanning:
    """Sequences are by component number. `evict(component, n)` frees device pages. `misses`:
    loads that could not start, by reason."""

    def __init__(
        self,
        tree: RadixTree,
        components: Sequence[TreeComponent],
        requests: Sequence[HookRequests],
        allocators: Sequence[Allocator],
        loads: Loads,
        freeing: Freeing,
        evict: Callable[[str, int], int],
        misses: Counter[str],
    ) -> None:
        self._tree = tree
        self._components = components
        self._requests = requests
        self._allocators = allocators
        self._loads = loads
        self._freeing = freeing
        self._evict = evict
        self._misses = misses

    def longest_fitting(self, lock: TreeLock, device_len: int) -> int:
        """The longest usable length of the locked path whose missing pages the device could hold, evicting if need be."""
        tree, store = self._tree, self._tree.store
        room = [a.n_free + e for a, e in zip(self._allocators, store.evictable[DEVICE], strict=True)]
        closed, node = store.closed, lock.node
        # Of what a prefix needs from its start, a shorter one lacks less, and each node tells how much: one walk for all lengths.
        lacking = self._units(node, node.end, closed) if node is not None and closed >= 0 else 0
        while node is not None and node.parent is not None and node.end > device_len:
            length, of_node = node.end, 0 if closed < 0 else self._loads.lacking(node, closed)
            if closed < 0 or lacking <= room[closed]:
                fits = all(c == closed or self._units(node, length, c) <= room[c] for c in range(len(room)))
                if fits and reach(self._components, node, length, host=True) == length:
                    return length
            # Of a window, shorter does not mean fewer pages, but others. Inside a node that is on its way already, or that the
            # device has, shorter saves nothing.
            elif len(room) == 1 and of_node:
                shorter = length - (lacking - room[closed]) * tree.page_size
                if shorter > max(node.parent.end, device_len):
                    return shorter
            lacking -= of_node
            node = node.parent
        return device_len

    def _units(self, end: Node, length: int, c: int) -> int:
        """Indices of component `c` that a load of `length` has to allocate."""
        nodes, _ = self._loads.needs(end, length, c)
        return sum(len(node.cells[c].host or b"") for node in nodes) // INDEX_BYTES

    def start(self, lock: TreeLock, agree: Agree) -> list[Loading] | None:
        """Allocate and start what the lock needs, on all ranks or on none. None, with nothing started and nothing taken: a
        component has no room after all, or a source cannot be captured, here or on another rank.

        Asks the other ranks once. Raises what an eviction raises, with nothing taken.
        """
        waits_for: dict[Loading, None] = {}
        own: list[Loading] = []
        pages = self._pages_for(lock)
        started = pages is not None and self._start_each(lock, pages, waits_for, own)
        [everywhere] = agree([int(started)])
        if everywhere:
            return list(waits_for)
        for loading in own:
            self._loads.withdraw(loading)
        self._misses[Reasons.NO_ROOM_IN_L1 if pages is None else Reasons.LOAD_NOT_STARTED] += 1
        return None

    def _pages_for(self, lock: TreeLock) -> list[Indices] | None:
        """Device pages for what is missing, by component; None, with nothing taken, when there is no room for all."""
        assert lock.node is not None
        pages: list[Indices] = []
        try:
            for c in range(len(self._components)):
                indices = self._alloc(c, self._units(lock.node, lock.length, c))
                if indices is None:
                    break
                pages.append(indices)
            else:
                return pages
        except BaseException:
            self._free(pages)
            raise
        self._free(pages)
        return None

    def _start_each(self, lock: TreeLock, pages: Sequence[Indices], waits_for: dict[Loading, None], own: list[Loading]) -> bool:
        """One load for each component that lacks something, into `pages`; what is not needed of them is freed. `waits_for` gets
        all that has to end, `own` what was started here. False when one of them cannot be started: no later one is then."""
        assert lock.node is not None
        whole = True
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
            if whole and requests:
                try:
                    loading = self._loads.start(c, requests)
                    waits_for[loading] = None
                    own.append(loading)
                    continue
                except Exception:
                    # No fault of L2 ends a request: what cannot be had is computed.
                    log.warning("a load of %r from host memory cannot be started", component.name, exc_info=True)
                    whole = False
            for request in requests:
                # In the portions in which another rank withdraws its load: what is allocated next is the same on all ranks.
                self._freeing.pages(c, request.indices)
        return whole

    def _free(self, pages: Sequence[Indices]) -> None:
        for c, indices in enumerate(pages):
            self._freeing.pages(c, indices)

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
