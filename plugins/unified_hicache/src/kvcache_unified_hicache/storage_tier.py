"""L3 of one cache: the backend behind its guard, the names and frames of pages, and the two flows, put together from the
configuration.

Storage sees bytes and keys. It may be slow, empty or gone; then there are misses and nothing else. Only a backend that does not
work when the program starts stops it.
"""

import logging
from contextlib import ExitStack
from typing import Final, cast, final

from kvcache_core.config.model import HiCacheConfig
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import KVCacheError, StorageError
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.guarded_store import GuardedStore, OpenGuard
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.node_digests import NodeDigests
from kvcache_unified_hicache.page_bytes import HostPageBytes, PageBytes
from kvcache_unified_hicache.persists import Persists
from kvcache_unified_hicache.storage.deadlines import close_within, within
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.page_keys import PageKeys, component_identity
from kvcache_unified_hicache.storage.self_test import self_test

log = logging.getLogger(__name__)

PATH: Final = ("hicache", "storage")
BYTES_IN_FLIGHT: Final = 256 << 20


@final
class StorageTier:
    """Assembled for `deps` as `hicache` (resolved, with a storage) says; `page_bytes` reaches the host pools of `host`.

    Raises:
        StorageError: the backend cannot be opened, or fails its self-test.
    """

    def __init__(
        self,
        hicache: HiCacheConfig,
        deps: CacheDeps,
        tree: RadixTree,
        host: HostTier,
        page_bytes: PageBytes,
        counters: CacheCounters,
        open_guard: OpenGuard | None = None,
    ) -> None:
        assert hicache.storage is not None
        names = [geometry.name for geometry in tree.store.geometries]
        frames = [PageFrame(deps.pools[name].page_arrays()) for name in names]
        identities = [component_identity(name, deps.pools[name].identity, (deps.tp_rank, deps.tp_size)) for name in names]
        self.keys = PageKeys(deps.model, deps.page_size)
        digests = NodeDigests(self.keys)
        self.persist_on = hicache.write_settings.persist_on
        read_only = self.persist_on == "never"
        backend = _open(hicache, deps, read_only=read_only)
        self.guard: GuardedStore
        # Nobody else can close what is open already when the rest cannot be made.
        with ExitStack() as undo:
            undo.callback(close_within, hicache.storage_timeout, backend)
            if open_guard is None:
                settings = GuardSettings(hicache.storage_timeout, max_bytes_in_flight=BYTES_IN_FLIGHT, read_only=read_only)
                self.guard = StorageGuard(backend, settings, counters, deps.observers)
            else:
                self.guard = open_guard(backend)
            undo.pop_all()
            undo.callback(self.guard.close, hicache.storage_timeout)
            # The other half is for fetches: somebody waits for those.
            most = BYTES_IN_FLIGHT // 2
            self.persists = Persists(tree.store, self.guard, digests, frames, identities, page_bytes, counters, most)
            self.fetches = Fetches(
                tree,
                self.guard,
                digests,
                frames,
                identities,
                page_bytes,
                host,
                host.freeing.slots,
                deps.agree,
                counters,
                hicache.prefetch_threshold,
            )
            undo.pop_all()
        if read_only:
            log.warning("storage %s is only read: with persist_on: never nothing is written to it", hicache.storage.kind)


def open_storage(
    hicache: HiCacheConfig,
    deps: CacheDeps,
    tree: RadixTree,
    host: HostTier,
    counters: CacheCounters,
    page_bytes: PageBytes | None,
    open_guard: OpenGuard | None,
) -> StorageTier:
    """The tier below `host`, over its pools unless `page_bytes` replaces them. When it fails to open, the host's threads end."""
    if page_bytes is None:
        structs = [deps.pools[geometry.name].host_struct() for geometry in tree.store.geometries]
        page_bytes = HostPageBytes(host.pools, structs)
    try:
        return StorageTier(hicache, deps, tree, host, page_bytes, counters, open_guard)
    except BaseException:
        host.controller.close()
        raise


def _open(hicache: HiCacheConfig, deps: CacheDeps, *, read_only: bool) -> HiCacheStorage:
    """The backend, after its self-test. Where nothing is written, a store that others keep may be one that cannot be written to,
    and one that is not there is an error."""
    assert hicache.storage is not None and deps.storage is not None
    kind = hicache.storage.kind
    opened = "opened only to be read (persist_on: never)" if read_only else "opened"
    try:
        scope = StorageScope(deps.model.model_id, deps.page_size, read_only=read_only)
        factory, options = deps.storage, hicache.storage.options
        backend = within(hicache.storage_timeout, lambda: factory(options, scope))
    except KVCacheError as error:
        raise StorageError(f"storage {kind!r} cannot be {opened}: {error}", path=error.path or PATH) from error
    except Exception as error:
        raise StorageError(f"storage {kind!r} cannot be {opened}: {type(error).__name__}: {error}", path=PATH) from error
    if cast(object, backend) is None:
        raise StorageError(f"storage {kind!r} cannot be {opened}: its factory gave None; report it to its makers", path=PATH)
    try:
        self_test(backend, hicache.storage_timeout, read_only=read_only)
    except BaseException:
        close_within(hicache.storage_timeout, backend)
        raise
    return backend
