"""UnifiedRadixCache: one tree over any set of components, with device memory (L1) and, with `hicache`, host memory (L2) and
storage (L3).

The tree of kvcache-radix decides what is known and usable; this class adds allocators, copies between the tiers and their
accounting. HiCache is assembled here, from the configuration. It does not know how bytes move: that is the controller's and the
storage guard's.
"""

import time
from collections.abc import Mapping
from typing import Final, final

from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import BasePrefixCache, Tier
from kvcache_core.contracts.locks import Lock, Refused, Ticket
from kvcache_core.contracts.results import NO_INDICES, Indices, InsertResult, MatchResult, PersistReport, SizeInfo, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds
from kvcache_core.deps import CacheDeps
from kvcache_radix.integrity import check_ownership, check_tree
from kvcache_radix.node import Node
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import DEVICE
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.copies_down import CopiesDown
from kvcache_unified_hicache.fetch_ticket import FetchTicket
from kvcache_unified_hicache.freeing import Freeing
from kvcache_unified_hicache.guarded_store import OpenGuard
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.integrity import check_host, check_operations, destinations
from kvcache_unified_hicache.leftovers import Leftovers
from kvcache_unified_hicache.load_planning import LoadPlanning
from kvcache_unified_hicache.operation import Operation
from kvcache_unified_hicache.page_bytes import PageBytes
from kvcache_unified_hicache.places import component_number
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.requests import HookRequests
from kvcache_unified_hicache.storage_tier import StorageTier, open_storage
from kvcache_unified_hicache.ticket import LoadTicket

STORAGE_PAUSE: Final = 0.002
"""Seconds that `pause` waits for a storage at most."""

TRIM_TOKENS: Final = 256
"""What an eviction at least takes of a node that L2 has too. In decoding a host asks for a page at a time, and every cut is one
node more on a path that stays."""

TRIM_SHARE: Final = 64
"""And never more than one part in so many of L1: what goes before it must costs hits there."""

CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the storage's threads and the backend to end."""


@final
class UnifiedRadixCache(BasePrefixCache):
    """`config`: resolved. `deps`: from the builder, with a factory for every component of the model. `edge_cap`: in pages.
    `open_guard`, `page_bytes`: for scripted tests, like `deps.controller`.

    Raises:
        ConfigError: the memory for L2 is not there.
        StorageError: the storage does not work.
    """

    def __init__(
        self,
        config: CacheConfig,
        deps: CacheDeps,
        edge_cap: int | None = None,
        *,
        open_guard: OpenGuard | None = None,
        page_bytes: PageBytes | None = None,
    ) -> None:
        super().__init__()
        specs = deps.model.components
        self._requests = [HookRequests() for _ in specs]
        self._components = [
            deps.components[spec.name](None, spec, requests) for spec, requests in zip(specs, self._requests, strict=True)
        ]
        hicache = config.hicache
        self._tree = RadixTree(deps.page_size, self._components, host=hicache is not None, edge_cap=edge_cap)
        self._allocators = [deps.allocators[spec.name] for spec in specs]
        # Tokens that an index stands for in the counters: a state is one.
        self._unit = {component.name: 1 if component.at_node_end else deps.page_size for component in self._components}
        self._pool_set = deps.pool_set
        self._agree = deps.agree
        self._storage: StorageTier | None = None
        self._persisted = False
        self._closed = False
        self._persist_timeout = 0.0 if hicache is None else hicache.persist_timeout
        if hicache is None or hicache.storage is None:
            self._host = None if hicache is None else HostTier(hicache, deps, self._tree, self.counters)
        else:
            on = hicache.write_settings.persist_on
            write_back = None if on == "never" else self._leaves_host
            landed = self._landed if on == "insert" else None
            self._host = HostTier(hicache, deps, self._tree, self.counters, write_back, landed)
            self._storage = open_storage(hicache, deps, self._tree, self._host, self.counters, page_bytes, open_guard)
        self._freeing = Freeing(self._allocators, (), self.counters) if self._host is None else self._host.freeing
        self._down: CopiesDown | None = None
        self._planning: LoadPlanning | None = None
        if self._host is not None:
            closed, backups = self._tree.store.closed, self._host.backups
            self._down = CopiesDown(self._components, self._requests, closed, backups, self._storage)
            parts = (self._tree, self._components, self._requests, self._allocators, self._host.loads, self._freeing)
            self._planning = LoadPlanning(*parts, self.evict, self.counters.misses)

    def match_prefix(self, ids: TokenIds, extra_key: ExtraKey = ()) -> MatchResult:
        return self._tree.match(ids, extra_key)

    def lock_ref(self, match: MatchResult, length: int | None = None, *, host: bool = False) -> Lock | None:
        lock = self._tree.lock(match, length, host=host)
        if lock is not None:
            self.counters.lookups += 1
        return lock

    def unlock_ref(self, lock: Lock, component: str | None = None) -> None:
        self._tree.unlock(lock, component)

    def insert(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        result, end = self._tree.insert_path(ids, values, extra_key)
        self._persisted = False
        inserted = duplicate = 0
        for name, segments in values.items():
            unit, duplicates, offered = self._unit[name], len(result.duplicates[name]), 0
            for segment in segments:
                offered += len(segment.indices)
            inserted += (offered - duplicates - len(result.refused[name])) * unit
            duplicate += duplicates * unit
        self.counters.inserted_tokens += inserted
        self.counters.duplicate_tokens += duplicate
        if self._host is not None and self._down is not None and self._host.backup_on_insert and end is not None:
            self._down.back_up_path(end)
        return result

    def evict(self, component: str, n: int, tier: Tier = "device") -> int:
        """Frees at least min(n, evictable); the last victim is trimmed, to TRIM_TOKENS where L2 has a copy of it. Without a host
        tier nothing is copied. Raises KeyError for an unknown component or tier."""
        c = component_number(self._tree.store, component, tier)
        if tier == "host":
            assert self._host is not None
            return self._host.evict(c, n)
        trim = min(TRIM_TOKENS // self._tree.page_size, self._allocators[c].total // TRIM_SHARE)
        reclaimed = Reclaimed()
        # Victims may be more than n: a demoted node takes its other components along.
        while (missing := n - reclaimed.count(DEVICE, c)) > 0:
            victim = self._tree.victim(c, missing, copied=trim)
            if victim is None:
                break
            if self._down is not None:
                self._down.save(victim, c)
            assert victim.parent is not None and victim.cells[c].device is not None, "copying takes only host data"
            self._tree.store.demote(victim, c, reclaimed)
        self._freeing.give_up(reclaimed)
        freed = reclaimed.count(DEVICE, c)
        self.counters.device_evicted_tokens += freed * self._unit[component]
        return freed

    def size(self, component: str, tier: Tier = "device") -> SizeInfo:
        c = component_number(self._tree.store, component, tier)
        if tier == "host":
            assert self._host is not None
            return self._host.size(c, 0 if self._storage is None else self._storage.fetches.in_flight[c])
        store, allocator = self._tree.store, self._allocators[c]
        evictable, protected = store.evictable[DEVICE][c], store.protected[DEVICE][c]
        in_flight = 0 if self._host is None else self._host.loads.in_flight[c]
        owned = allocator.total - allocator.n_free - evictable - protected - in_flight
        return SizeInfo(allocator.n_free, evictable, protected, in_flight, owned, allocator.total)

    def load(self, match: MatchResult) -> Ticket | Refused:
        """The longest usable length that fits. Nothing is evicted unless what must be loaded fits afterwards."""
        host, planning, tree = self._host, self._planning, self._tree
        if host is None or planning is None:
            return Refused.NO_TIER
        if not match.host_len:
            return Refused.NOTHING_TO_DO
        lock = tree.lock(match, host=True)
        if lock is None:
            return Refused.STALE
        fitting = planning.longest_fitting(lock, match.device_len)
        [length] = self._agree([fitting])
        if length < lock.length:
            tree.unlock(lock)
            if length <= match.device_len:
                self.counters.misses[Reasons.NO_ROOM_IN_L1] += 1
                return Refused.NO_ROOM
            lock = tree.lock(match, length, host=True)
            if lock is None:
                return Refused.STALE
        try:
            waits_for = planning.start(lock, self._agree)
        except BaseException:
            tree.unlock(lock)
            raise
        if waits_for is None:
            tree.unlock(lock)
            return Refused.NO_ROOM
        if not waits_for:
            tree.unlock(lock)
            return Refused.NOTHING_TO_DO
        self.counters.lookups += 1
        return LoadTicket(lock, waits_for, host.loads, planning.usable, self.unlock_ref, self._turn, self._agree)

    def prefetch(self, ids: TokenIds, extra_key: ExtraKey = ()) -> Ticket | Refused:
        """What the storage has of the whole pages of `ids` beyond what memory has, where that is worth it. BUSY passes; what is
        too long for its share of L2 is brought as far as it fits."""
        storage = self._storage
        if storage is None:
            return Refused.NO_TIER
        fetch = storage.fetches.start(ids, extra_key)
        return fetch if isinstance(fetch, Refused) else FetchTicket(fetch, storage.fetches.usable, self._turn, self.pause)

    def poll(self) -> int:
        if self._host is None:
            return 0
        ended = self._host.controller.poll()
        if self._storage is not None:
            self._storage.guard.poll()
            ended += self._storage.fetches.poll()
        return ended

    def pause(self, seconds: float) -> None:
        storage, host = self._storage, self._host
        if storage is None or host is None or host.copying or storage.guard.idle:
            time.sleep(seconds)
        else:
            # Looking again and again would take time and the interpreter from the threads that read.
            storage.guard.wait(STORAGE_PAUSE)

    def persist(self, deadline: float) -> PersistReport:
        """Bring what only L1 or L2 holds to the storage, for at most `deadline` seconds. `stored` counts pages, of every
        component, that the storage took meanwhile."""
        storage, host = self._storage, self._host
        if storage is None or host is None:
            return super().persist(deadline)
        if storage.persist_on == "never":
            return PersistReport(message="with persist_on: never the storage is only read; nothing was written")
        self._persisted = True
        leftovers = Leftovers(self._tree.store, host.backups, storage.persists, storage.guard, host, self._turn, self._agree)
        return leftovers.persist(deadline)

    def reset(self) -> bool:
        reclaimed = self._tree.clear()
        if reclaimed is None:
            return False
        self._freeing.release(reclaimed)
        if self._storage is not None:
            self._storage.fetches.forget()
        return True

    def close(self) -> None:
        """Stores what is not stored yet first, unless `persist` has just been called, for at most `persist_timeout` seconds."""
        if self._host is None or self._closed:
            return
        self._closed = True
        try:
            if self._storage is not None:
                self._storage.fetches.forget()
                if not self._persisted:
                    self.persist(self._persist_timeout)
        finally:
            try:
                if self._storage is not None:
                    self._storage.guard.close(CLOSE_TIMEOUT)
            finally:
                self._host.controller.close()

    def check_integrity(self, request_owned: Mapping[str, Indices] | None = None) -> None:
        host, storage, tree = self._host, self._storage, self._tree
        check_tree(tree)
        loads = set[Operation]() if host is None else host.loads.running
        check_operations(tree.store, loads if host is None else loads | host.backups.running)
        for c, component in enumerate(self._components):
            owned = None if request_owned is None else request_owned.get(component.name, NO_INDICES)
            check_ownership(tree, DEVICE, c, self.size(component.name), owned, destinations(loads, c))
        if host is not None:
            check_host(tree, host, storage, [self.size(component.name, "host") for component in self._components])

    def _leaves_host(self, node: Node, c: int, last: bool) -> None:
        assert self._down is not None
        self._down.leaves_host(node, c, last)

    def _landed(self, node: Node, c: int) -> None:
        assert self._down is not None
        self._down.landed(node, c)

    def _turn(self) -> None:
        """An idle step: what is queued is dispatched, what is complete is committed."""
        self._pool_set.give(self._pool_set.take())
        self.poll()


def make(config: CacheConfig, deps: CacheDeps) -> UnifiedRadixCache:
    """The factory named by the descriptor. Raises what `UnifiedRadixCache` raises."""
    return UnifiedRadixCache(config, deps)
