"""L2 of one cache: host pools, the controller, and the two directions of copies, put together from the configuration.

It knows the tree and the pools; it does not know requests or what is worth caching.
"""

import logging
from collections.abc import Callable, Sequence
from typing import final

from kvcache_core.config.model import HiCacheConfig
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.results import Indices, SizeInfo
from kvcache_core.deps import CacheDeps
from kvcache_radix.node import Node
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import HOST
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.controller import ControllerParts, HiCacheController
from kvcache_unified_hicache.freeing import Freeing
from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.discards import Discards
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool
from kvcache_unified_hicache.loads import Loads
from kvcache_unified_hicache.sizing import host_slots
from kvcache_unified_hicache.transfer import TransferController

log = logging.getLogger(__name__)

POOLS = {"per_page": PerPagePool, "preallocated": PreallocatedPool}

IN_FLIGHT_SHARE = 4
"""Copies under way may take one part in so many of the host pools' memory."""


Landed = Callable[[Node, int], None]
"""(node, component number): the node has this component's data in the host now."""
WriteBack = Callable[[Node, int, bool], None]
"""(node, component number, last): the node is about to lose this component's host data, which is still there during the call.
`last`: what the device has of it, if anything, goes too."""


@final
class TreeVictims:
    """Chooses a host pool's victims: the tree's least recently used, each shown to `write_back` before it is taken. What else
    leaves the tree with them waits in `leftovers`, whose owner frees it as soon as the pool is done."""

    def __init__(self, tree: RadixTree, c: int, write_back: WriteBack | None, leftovers: list[Reclaimed]) -> None:
        self._tree = tree
        self._c = c
        self._write_back = write_back
        self._leftovers = leftovers

    def __call__(self, n: int) -> Indices:
        reclaimed = self.take(n)
        slots = reclaimed.take(HOST, self._c)
        self._leftovers.append(reclaimed)
        return slots

    def take(self, n: int) -> Reclaimed:
        """At least `n` slots, as far as unlocked data goes, and all that leaves the tree with them."""
        tree, c = self._tree, self._c
        if self._write_back is None:
            return tree.evict(tree.store.geometries[c].name, n, "host")
        reclaimed = Reclaimed()
        while (missing := n - reclaimed.count(HOST, c)) > 0:
            victim = tree.victim(c, missing, HOST)
            if victim is None:
                break
            self._write_back(victim, c, victim.cells[c].device is None)
            reclaimed.add(HOST, c, tree.store.take(victim, c, HOST))
            if c == tree.store.closed and victim.cells[c].empty:
                self._take_all(victim, self._write_back, reclaimed)
            tree.store.settle(victim, reclaimed)
        return reclaimed

    def _take_all(self, top: Node, write_back: WriteBack, reclaimed: Reclaimed) -> None:
        """The node and all below it are about to go, from the device too: what they have in host memory is no loss where it is
        written back."""
        store, doomed = self._tree.store, [top]
        for node in doomed:
            doomed += (node.children or {}).values()
            for other, cell in enumerate(node.cells):
                if cell.host is not None:
                    write_back(node, other, True)
                    reclaimed.add(HOST, other, store.take(node, other, HOST))


@final
class HostTier:
    """Assembled for `deps` as `hicache` (resolved) says. `freeing` gives back what leaves the tree, in both tiers. `write_back`
    is shown what is about to leave the host, `landed` what a copy has just brought there; both only with a storage below.

    Raises:
        ConfigError: the memory it asks for is not there.
    """

    def __init__(
        self,
        hicache: HiCacheConfig,
        deps: CacheDeps,
        tree: RadixTree,
        counters: CacheCounters,
        write_back: WriteBack | None = None,
        landed: Landed | None = None,
    ) -> None:
        self._tree = tree
        self._counters = counters
        self._leftovers: list[Reclaimed] = []
        names = [geometry.name for geometry in tree.store.geometries]
        totals = host_slots(hicache, deps, names)
        self._pools: list[HostKVPool] = []
        discards = Discards()
        self._victims = [TreeVictims(tree, c, write_back, self._leftovers) for c in range(len(names))]
        for c, name in enumerate(names):
            struct = deps.pools[name].host_struct()
            self._pools.append(POOLS[hicache.host_pool](struct, totals[c], self._victims[c], discards))
        self.freeing = Freeing([deps.allocators[name] for name in names], self._pools, counters)
        parts = ControllerParts(
            queue=deps.queue,
            pool_set=deps.pool_set,
            device_pools=deps.pools,
            host_pools=dict(zip(names, self._pools, strict=True)),
            evict_callback=self._count_evicted,
            async_impl=hicache.async_impl,
            max_bytes_in_flight=sum(pool.budget_bytes for pool in self._pools) // IN_FLIGHT_SHARE,
            agree=deps.agree,
            counters=counters,
            discards=discards,
        )
        make_controller: Callable[[ControllerParts], TransferController] = deps.controller or HiCacheController
        self.controller = make_controller(parts)
        store, freeing = tree.store, self.freeing
        self.backups = Backups(store, self.controller, self.alloc, freeing.slots, freeing.give_up, counters, landed)
        self.loads = Loads(store, self.controller, freeing.pages, freeing.give_up, counters)
        self.backup_on_insert = hicache.write_settings.backup_on == "insert"
        self._warn(deps, names, totals)

    @property
    def copying(self) -> bool:
        """Whether pages are on their way between L1 and L2: only looking tells when they are there."""
        return bool(self.loads.running or self.backups.running)

    @property
    def pools(self) -> Sequence[HostKVPool]:
        """By component number."""
        return self._pools

    def total(self, c: int) -> int:
        """Slots of component `c`."""
        return self._pools[c].total

    def obtainable(self, c: int) -> int:
        """Slots that are free or can be had by evicting."""
        return self._pools[c].n_free + self._tree.store.evictable[HOST][c]

    def has_room(self, c: int, n: int) -> bool:
        """Whether `n` more units may be copied now, as far as bytes in flight go."""
        return self.controller.has_room(self._tree.store.geometries[c].name, n)

    def alloc(self, c: int, n: int) -> Indices | None:
        """`n` slots, evicting from the host on shortage; None at once when even that could not give them. Eviction may drop nodes
        that have no device data."""
        # Asked for more than there can be, it must fail before anything is evicted for nothing.
        if n > self.obtainable(c):
            return None
        slots = self.controller.reserve(self._tree.store.geometries[c].name, n)
        if self._leftovers:
            leftovers = self._leftovers[:]
            self._leftovers.clear()
            for reclaimed in leftovers:
                self.freeing.give_up(reclaimed)
        return slots

    def evict(self, c: int, n: int) -> int:
        """Free at least `n` slots, as far as unlocked data goes; returns how many slots were freed."""
        reclaimed = self._victims[c].take(n)
        slots = reclaimed.indices(HOST, c)
        self.freeing.give_up(reclaimed)
        self._count_evicted(self._tree.store.geometries[c].name, slots)
        return len(slots)

    def size(self, c: int, fetching: int = 0) -> SizeInfo:
        """`fetching`: slots that fetches from the storage own."""
        pool, store = self._pools[c], self._tree.store
        evictable, protected, in_flight = store.evictable[HOST][c], store.protected[HOST][c], self.backups.in_flight[c] + fetching
        owned = pool.total - pool.n_free - evictable - protected - in_flight
        return SizeInfo(pool.n_free, evictable, protected, in_flight, owned, pool.total)

    def check_integrity(self) -> None:
        """Raises IntegrityError when a host pool disagrees with itself."""
        for pool in self._pools:
            pool.check_integrity()

    def _count_evicted(self, component: str, slots: Indices) -> None:
        store = self._tree.store
        unit = 1 if store.geometries[store.components[component]].at_node_end else store.page_size
        self._counters.host_evicted_tokens += len(slots) * unit

    def _warn(self, deps: CacheDeps, names: Sequence[str], totals: Sequence[int]) -> None:
        for name, total in zip(names, totals, strict=True):
            device = deps.allocators[name].total
            if self.backup_on_insert and total <= device:
                log.warning(
                    "L2 holds %d pages of %r, L1 holds %d: copies at insert into an L2 no larger than L1 gain next to nothing; "
                    "raise hicache.ratio, or set hicache.backup_on: evict",
                    total,
                    name,
                    device,
                )
