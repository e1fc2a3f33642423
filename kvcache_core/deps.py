"""What a host hands to the builder, and what the builder hands on to a cache factory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.component import ComponentTiers, TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec, ModelSpec
from kvcache_core.contracts.pools import Allocator, DevicePool, PoolSet
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope
from kvcache_core.transfer_queue import TransferQueue


class CacheObserver(Protocol):
    """Told about events on the owner thread. An observer that raises is logged once and no longer called."""

    def cache_built(self, cache: BasePrefixCache) -> None:
        """A cache was built and is about to be handed to the host."""
        ...

    def page_stored(self, key: str, n_bytes: int) -> None:
        """The storage took a page of `n_bytes` bytes under `key`."""
        ...

    def page_removed(self, key: str) -> None:
        """A page was removed from the storage by this cache."""
        ...


class ComponentFactory(Protocol):
    """Makes one TreeComponent. `options` is None: what a component has to know, its `spec` says."""

    def __call__(self, options: Any, spec: ComponentSpec, tiers: ComponentTiers) -> TreeComponent: ...


class StorageFactory(Protocol):
    """Opens one storage backend. `options` is an instance of the descriptor's config model."""

    def __call__(self, options: Any, scope: StorageScope) -> HiCacheStorage: ...


class CacheFactory(Protocol):
    """Makes a cache from a resolved configuration."""

    def __call__(self, config: Any, deps: "CacheDeps") -> BasePrefixCache: ...


def agree_alone(values: Sequence[int]) -> list[int]:
    """`agree` for a single rank: every rank decides what it proposed."""
    return list(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDeps:
    """The dependency container of one cache: one per data-parallel rank.

    `allocators`, `pools`: by component name, the same names as in `model.components`. `agree(values)` gives the element-wise
    minimum over the tensor-parallel ranks; several ranks must take the same decisions. `controller` replaces the cache's own
    transfer controller, for scripted tests. `caches`: how many caches of this size the process makes, one for each data-parallel
    rank it has; their host memory is checked together, before the first one takes any. `components`, `storage` and `observers`
    are filled by the builder from plugins; hosts leave them empty.
    """

    model: ModelSpec
    page_size: int
    allocators: Mapping[str, Allocator]
    pools: Mapping[str, DevicePool]
    pool_set: PoolSet
    queue: TransferQueue
    tp_rank: int = 0
    tp_size: int = 1
    caches: int = 1
    mesh: Any = None
    agree: Callable[[Sequence[int]], Sequence[int]] = agree_alone
    controller: Callable[..., Any] | None = None
    components: Mapping[str, ComponentFactory] = field(default_factory=dict[str, ComponentFactory])
    storage: StorageFactory | None = None
    observers: tuple[CacheObserver, ...] = ()
