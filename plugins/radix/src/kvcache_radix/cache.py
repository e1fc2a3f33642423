"""RadixCache: prefix reuse in device memory for full attention. The tree does the work; this class adds the allocator.

It does not know other components, a host tier or storage: `unified_radix_cache` does.
"""

from collections.abc import Mapping
from typing import Any, final

from kvcache_core.contracts.cache import BasePrefixCache, Tier
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import NO_INDICES, Indices, InsertResult, MatchResult, SizeInfo, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import ConfigError
from kvcache_radix.integrity import check_ownership, check_tree
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import DEVICE
from kvcache_radix.tree import RadixTree

FULL = "full"


class _Full:
    name, prefix_closed, at_node_end = FULL, True, False

    def first_needed(self, length: int) -> int:
        return 0


@final
class RadixCache(BasePrefixCache):
    """`page_size` in tokens. `allocator`: the host's, for the component `full`; evicted indices go back to it. `edge_cap`: the
    longest edge in pages."""

    def __init__(self, page_size: int, allocator: Allocator, edge_cap: int | None = None) -> None:
        super().__init__()
        self._allocator = allocator
        self._tree = RadixTree(page_size, [_Full()], edge_cap=edge_cap)

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
        tree = self._tree
        evictable, protected = tree.store.evictable[DEVICE], tree.store.protected[DEVICE]
        before = evictable[0] + protected[0]
        result = tree.insert(ids, values, extra_key)
        self.counters.inserted_tokens += (evictable[0] + protected[0] - before) * tree.page_size
        self.counters.duplicate_tokens += len(result.duplicates[FULL]) * tree.page_size
        return result

    def evict(self, component: str, n: int, tier: Tier = "device") -> int:
        """Frees exactly min(n, evictable): the last victim is trimmed. Raises KeyError for an unknown component or tier."""
        _check_place(component, tier)
        freed = self._free(self._tree.evict(component, n))
        self.counters.device_evicted_tokens += freed * self._tree.page_size
        return freed

    def size(self, component: str, tier: Tier = "device") -> SizeInfo:
        _check_place(component, tier)
        store, total, free = self._tree.store, self._allocator.total, self._allocator.n_free
        evictable, protected = store.evictable[DEVICE][0], store.protected[DEVICE][0]
        return SizeInfo(free, evictable, protected, 0, total - free - evictable - protected, total)

    def reset(self) -> bool:
        reclaimed = self._tree.clear()
        if reclaimed is None:
            return False
        self._free(reclaimed)
        return True

    def check_integrity(self, request_owned: Mapping[str, Indices] | None = None) -> None:
        check_tree(self._tree)
        owned = None if request_owned is None else request_owned.get(FULL, NO_INDICES)
        check_ownership(self._tree, DEVICE, 0, self.size(FULL), owned)

    def _free(self, reclaimed: Reclaimed) -> int:
        indices = reclaimed.indices(DEVICE, 0)
        if len(indices):
            self._allocator.free(indices)
        return len(indices)


def make(config: Any, deps: CacheDeps) -> RadixCache:
    """The factory. Raises ConfigError when the model has components that this cache does not serve."""
    names = [spec.name for spec in deps.model.components]
    if names != [FULL]:
        raise ConfigError(
            f"radix_cache serves the component 'full' alone, the model has: {', '.join(names)}; use unified_radix_cache"
        )
    return RadixCache(deps.page_size, deps.allocators[FULL])


def _check_place(component: str, tier: Tier) -> None:
    if component != FULL:
        raise KeyError(f"radix_cache has the component 'full', not {component!r}")
    if tier != "device":
        raise KeyError(f"radix_cache has the tier 'device', not {tier!r}")
