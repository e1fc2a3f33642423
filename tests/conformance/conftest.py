"""UnifiedRadixCache in the kit's surroundings: with any components, with or without a host tier whose controller is scripted.

The components are the published ones; what they should need is computed by the kit's own geometries. The kit knows no jax and no
plugin. What a host pool has to be told about a page, and a look into the tree for what the cache claims to have in host memory,
are therefore here.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, BrokenBarrierError
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvcache_component_full.component import make as make_full
from kvcache_component_recurrent.component import make as make_recurrent
from kvcache_component_swa.component import make as make_swa
from kvcache_conformance.geometries import FULL
from kvcache_conformance.page_content import BYTES, LAYERS
from kvcache_conformance.pool_model import NumpyPool
from kvcache_conformance.scripted_pages import ScriptedPageBytes
from kvcache_conformance.stored_world import StoredWorld
from kvcache_conformance.tier_ledger import HostClaims
from kvcache_conformance.tier_steps import TierSizes
from kvcache_conformance.tiered_world import TieredWorld
from kvcache_conformance.transfer_script import TransferScript
from kvcache_core import CacheConfig
from kvcache_core.config.model import HiCacheConfig
from kvcache_core.config.slot import StorageSlot
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_core.registry.descriptors import PluginOptions
from kvcache_radix.node import TOKEN_BYTES
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.page_bytes import PageBytes

COMPONENTS = {"full": make_full, "swa": make_swa, "recurrent": make_recurrent}


def page_struct():
    """One numpy page as a pinned host pool wants to hear of it. No content of a jax array is ever made."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    return jax.ShapeDtypeStruct((1, LAYERS, BYTES), jnp.uint8, sharding=sharding)


def claims(cache):
    """What the tree says about host memory, page by page."""
    store, page = cache._tree.store, cache._tree.page_size
    names = [geometry.name for geometry in store.geometries]
    resident, copying = {name: {} for name in names}, {name: set() for name in names}
    todo = [(root.extra_key, b"", child) for root in store.roots.values() for child in root.children.values()]
    while todo:
        extra_key, above, node = todo.pop()
        prefix = above + node.key
        todo += [(extra_key, prefix, child) for child in (node.children or {}).values()]
        for name, geometry, cell in zip(names, store.geometries, node.cells, strict=True):
            starts = [node.end - page] if geometry.at_node_end else range(node.start, node.end, page)
            keys = [(extra_key, prefix[: (start + page) * TOKEN_BYTES]) for start in starts]
            if cell.host is not None:
                resident[name].update(zip(keys, np.frombuffer(cell.host, np.int32).tolist(), strict=True))
            if cell.operation in cache._host.backups.running:
                copying[name].update(keys)
    storage = cache._storage
    fetching = {name: [] if storage is None else storage.fetches.owned(c).tolist() for c, name in enumerate(names)}
    return HostClaims(resident, copying, fetching)


class NoBackend(HiCacheStorage):
    """Passes the self-test; everything else goes to the script."""

    def __init__(self):
        self.pages = {}

    def exists(self, keys):
        return [key in self.pages for key in keys]

    def get(self, keys):
        return [self.pages.get(key) for key in keys]

    def set(self, keys, values):
        self.pages.update(zip(keys, map(bytes, values), strict=True))

    def delete(self, keys):
        for key in keys:
            self.pages.pop(key, None)


def build(host, hicache=None, script=None, storage=None, cache_type=UnifiedRadixCache, backend=None, **changes):
    """The cache; `changes` of what it depends on."""
    deps = replace(host.deps(), components={name: COMPONENTS[name] for name in host.geometries}, **changes)
    if script is not None:
        deps = replace(deps, controller=script.make)
    config = CacheConfig(cache_type="unified_radix_cache", page_size=host.page_size, hicache=hicache)
    if storage is None:
        return cache_type(config, deps)
    assert script is not None
    deps = replace(deps, storage=backend or (lambda options, scope: NoBackend()))
    # The kit may not import the plugin's tuple of what came; its own has the same two fields.
    page_bytes = cast("PageBytes", ScriptedPageBytes(script, storage, list(host.geometries)))
    return cache_type(config, deps, open_guard=storage.open_guard, page_bytes=page_bytes)


def build_tiered(sizes, components=(FULL,), cache_type=build):
    host = sizes.host(components, lambda name: NumpyPool(name, page_struct()))
    hicache = HiCacheConfig(ratio=sizes.ratio, backup_on=sizes.backup_on, persist_on="never")
    script = TransferScript()
    cache = cache_type(host, hicache, script)
    return TieredWorld(cache, host, script, lambda: claims(cache))


def build_stored(sizes, storage, components=(FULL,), threshold=1, **changes):
    host = sizes.host(components, lambda name: NumpyPool(name, page_struct()))
    hicache = HiCacheConfig(
        ratio=sizes.ratio,
        backup_on=sizes.backup_on,
        persist_on=sizes.persist_on,
        storage=StorageSlot(kind="script", options=PluginOptions()),
        prefetch_threshold=threshold,
    )
    script = TransferScript()
    cache = build(host, hicache, script, storage, **changes)
    stored = StoredWorld(cache, storage, persists=sizes.persist_on != "never")
    return TieredWorld(cache, host, script, lambda: claims(cache), stored)


class Ranks:
    """Two that meet at every agreement, and once more at their ends."""

    def __init__(self):
        self._barrier = Barrier(2, timeout=20.0)
        self._said = [None, None]

    def _meet(self, rank, values):
        self._said[rank] = values
        self._barrier.wait()
        said = list(self._said)
        self._barrier.wait()
        lengths = [None if one is None else len(one) for one in said]
        assert lengths[0] == lengths[1], f"vectors of different lengths, None for a rank that has ended: {lengths}"
        return said

    def _agree_of(self, rank):
        return lambda values: [min(pair) for pair in zip(*self._meet(rank, list(values)), strict=True)]

    def _one(self, rank, work):
        try:
            result = work(rank, self._agree_of(rank))
            self._meet(rank, None)
        except BaseException:
            self._barrier.abort()
            raise
        return result

    def run(self, work):
        """`work(rank, agree)` on both. Raises what the first of them raised that was not just left alone by the other."""
        with ThreadPoolExecutor(2) as threads:
            both = [threads.submit(self._one, rank, work) for rank in range(2)]
        errors = [error for one in both if (error := one.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        return [one.result() for one in both]


@pytest.fixture
def ranks():
    return Ranks()


@pytest.fixture(scope="session")
def stored():
    """`stored(sizes, storage script, components)`: a `TieredWorld` with storage."""
    return build_stored


@pytest.fixture(scope="session")
def unified():
    """`unified(host)`: a UnifiedRadixCache with device memory alone."""
    return build


@pytest.fixture(scope="session")
def tiered():
    """`tiered(sizes, components)`: a `TieredWorld`."""
    return build_tiered


@pytest.fixture
def world(tiered):
    """Page size 4; 16 pages on the device, 64 slots in the host; copied when inserted."""
    return tiered(TierSizes(4, 16, 64, "insert"))
