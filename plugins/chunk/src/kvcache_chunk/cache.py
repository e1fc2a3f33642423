"""ChunkCache: the cache of a node that gains nothing from prefixes.

A decode node receives finished KV pages from a prefill node; a tree there would cost memory and look-ups and never hit. So this
cache keeps nothing: every match is empty, every insert is refused, and all pages stay with the requests that computed them.
It serves any set of components, because it never touches their data.
"""

from collections.abc import Collection, Mapping
from typing import Any, final

import numpy as np

from kvcache_core.contracts.cache import BasePrefixCache, Tier
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import NO_INDICES, Indices, InsertResult, MatchResult, Segment, SizeInfo, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds, as_token_ids, check_extra_key
from kvcache_core.contracts.values import check_values
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import IntegrityError, LockError


def make(config: Any, deps: CacheDeps) -> "ChunkCache":
    """The factory named by the descriptor."""
    states = [spec.name for spec in deps.model.components if spec.state_shape is not None]
    return ChunkCache(deps.allocators, deps.page_size, states)


@final
class _EmptyLock(Lock):
    """A receipt over nothing."""

    def __init__(self, components: Collection[str]) -> None:
        self._components = components

    @property
    def length(self) -> int:
        return 0

    def segment(self, component: str) -> Segment:
        if component not in self._components:
            raise KeyError(component)
        return Segment(0, 0, NO_INDICES)


@final
class ChunkCache(BasePrefixCache):
    """No prefix reuse, made for decode nodes (`disaggregation_mode: decode` always gets it).

    Elsewhere it is the baseline that other caches are compared with. `allocators`: by component name, owned by the host; only
    read, to account for pages. `page_size` in tokens. `states`: names of the components that keep one unit at a node's end; it
    only matters for which offers are malformed.
    """

    def __init__(self, allocators: Mapping[str, Allocator], page_size: int, states: Collection[str] = ()) -> None:
        super().__init__()
        self._states = frozenset(states)
        self._allocators = dict(allocators)
        self._page_size = page_size
        self._live: set[Lock] = set()

    def match_prefix(self, ids: TokenIds, extra_key: ExtraKey = ()) -> MatchResult:
        as_token_ids(ids)
        check_extra_key(extra_key)
        return MatchResult(handle=None, device_len=0, host_len=0, matched_len=0)

    def lock_ref(self, match: MatchResult, length: int | None = None, *, host: bool = False) -> Lock | None:
        if length:
            raise ValueError(f"cannot lock {length} tokens: chunk_cache never matches any")
        lock = _EmptyLock(self._allocators.keys())
        self._live.add(lock)
        self.counters.lookups += 1
        return lock

    def unlock_ref(self, lock: Lock, component: str | None = None) -> None:
        if lock not in self._live:
            raise LockError("this lock was released before, or another cache made it")
        if component is None:
            self._live.remove(lock)
        else:
            lock.segment(component)

    def insert(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        check_extra_key(extra_key)
        check_values(len(as_token_ids(ids)), values, self._page_size, self._allocators.keys(), self._states)
        refused = {
            name: np.concatenate([NO_INDICES, *(segment.indices for segment in segments)]) for name, segments in values.items()
        }
        return InsertResult(length=0, duplicates=dict.fromkeys(values, NO_INDICES), refused=refused)

    def evict(self, component: str, n: int, tier: Tier = "device") -> int:
        self._allocator(component, tier)
        return 0

    def size(self, component: str, tier: Tier = "device") -> SizeInfo:
        allocator = self._allocator(component, tier)
        owned = allocator.total - allocator.n_free
        return SizeInfo(free=allocator.n_free, evictable=0, protected=0, in_flight=0, request_owned=owned, total=allocator.total)

    def reset(self) -> bool:
        return not self._live

    def check_integrity(self, request_owned: Mapping[str, Indices] | None = None) -> None:
        if request_owned is None:
            return
        for name, allocator in self._allocators.items():
            indices = request_owned.get(name, NO_INDICES)
            if len(np.unique(indices)) != len(indices):
                raise IntegrityError(f"component {name!r}: requests own a page twice")
            if allocator.n_free + len(indices) != allocator.total:
                raise IntegrityError(
                    f"component {name!r}: {allocator.n_free} free + {len(indices)} request owned is not {allocator.total}"
                )

    def _allocator(self, component: str, tier: Tier) -> Allocator:
        if tier != "device":
            raise KeyError(f"chunk_cache has no {tier} tier")
        return self._allocators[component]
