"""A prefix that was pushed out of sgl-jax's pool comes back from L2 into other slots, with its content, while the pool is full.

The pool is a stand-in with sgl-jax's arrays; the cache, its host memory and the copies are the real ones.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from kvcache_conformance.sgl_jax_host import HostRequest, Rows, SlotPool
from kvcache_core.builder import build_kv_cache
from kvcache_core.config.load import config_from_mapping
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.deps import CacheDeps
from kvcache_core.transfer_queue import TransferQueue
from kvcache_sgl_jax.kv_pages import KVPages
from kvcache_sgl_jax.pool_gate import FULL, Barrier, PoolGate
from kvcache_sgl_jax.rank_allocator import RankAllocator
from kvcache_sgl_jax.rank_cache import RankCache

LAYERS, PAGES, WIDTH = 2, 24, 8


class Pool:
    """One number for each token, repeated over the page's inner axes."""

    def __init__(self, page_size):
        mesh = jax.sharding.Mesh(
            np.array(jax.devices()[:1]).reshape(1, 1), ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2
        )
        self.kv_sharding = NamedSharding(mesh, PartitionSpec("data", None, "tensor", None, None))
        self.page_size = page_size
        self.start_layer = 0
        shape = (PAGES + 1, page_size, 2, 1, WIDTH)
        self.kv_buffer = [jax.device_put(jnp.zeros(shape, jnp.float32), self.kv_sharding) for _ in range(LAYERS)]

    def replace_buffer(self, kv_buffer):
        self.kv_buffer[:] = kv_buffer

    def write(self, slots, numbers):
        for layer in range(LAYERS):
            flat = np.asarray(self.kv_buffer[layer]).copy()
            flat.reshape(-1, 2, 1, WIDTH)[slots] = np.asarray(numbers, np.float32)[:, None, None, None] + 1000 * layer
            self.kv_buffer[layer] = jax.device_put(flat, self.kv_sharding)

    def read(self, slots):
        layers = [np.asarray(layer).reshape(-1, 2, 1, WIDTH)[slots] for layer in self.kv_buffer]
        assert all((layer == layer[:, :1, :1, :1]).all() for layer in layers)
        assert (layers[1][:, 0, 0, 0] - layers[0][:, 0, 0, 0] == 1000).all()
        return layers[0][:, 0, 0, 0].tolist()


class Host:
    """Computes whole prompts of a host whose pool holds 24 pages."""

    def __init__(self, page_size, **hicache):
        self.pool = Pool(page_size)
        self.slots = SlotPool(PAGES, page_size)
        self.rows = Rows(1, PAGES * page_size)
        allocator = RankAllocator(self.slots, 0)
        pools = {FULL: KVPages(self.pool, 0, 1)}
        queue = TransferQueue(pools)
        self.waited: list[int] = []
        barrier = Barrier()
        barrier.set(lambda: self.waited.append(queue.pending()))
        gate = PoolGate(self.pool, queue, barrier)
        config = config_from_mapping({"cache_type": "unified_radix_cache", "page_size": page_size, "hicache": hicache})
        model = ModelSpec("tiny", "", "full_attention")
        deps = CacheDeps(model=model, page_size=page_size, allocators={FULL: allocator}, pools=pools, pool_set=gate, queue=queue)
        self.cache = build_kv_cache(config, deps)
        self.rank = RankCache(self.cache, 0, allocator, self.rows, gate)

    def serve(self, ids):
        """Tokens that were on the device, and tokens that were loaded."""
        found = self.rank.match(ids[:-1], None)
        device, held = found.slots, found.held
        held.lock()
        loaded = self.rank.load(held) if found.host_tokens else None
        if loaded is not None:
            loaded.held.lock()
            held.unlock()
            held = loaded.held
        have = np.concatenate([device, np.empty(0, np.int32) if loaded is None else loaded.slots])
        assert self.pool.read(have) == ids[: len(have)]
        page_size = self.pool.page_size
        need = -(-(len(ids) - len(have)) // page_size) * page_size
        if self.slots.available_size() < need:
            self.rank.evict(need)
        own = self.slots.alloc(need)
        self.pool.write(own[: len(ids) - len(have)], ids[len(have) :])
        self.rows.req_to_token[0, : len(ids)] = np.concatenate([have, own])[: len(ids)]
        request = HostRequest(ids, 0, held, fill_ids=ids, committed=len(ids))
        self.rank.offer_chunk(request)
        self.rank.finish(request, insert=True)
        self.settle()
        self.cache.check_integrity({})
        return len(device), len(have) - len(device)

    def settle(self):
        """Steps in which nothing is computed, until copies to L2 are committed: before that they can serve nobody."""
        end = time.monotonic() + 60
        self.rank.turn()
        while self.cache.size(FULL, "host").in_flight:
            assert time.monotonic() < end, "a copy to L2 is never committed"
            self.rank.turn()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("backup_on", ["insert", "evict"])
def test_what_was_pushed_out_comes_back_with_its_content_while_the_pool_is_full(backup_on, page_size):
    host = Host(page_size, ratio=4.0, backup_on=backup_on, persist_on="never")
    prompts = [list(range(start, start + 10 * page_size)) for start in (100, 300, 500)]
    assert [host.serve(ids) for ids in prompts] == [(0, 0)] * 3
    # The third took pages of the first, leaf first; now each in turn takes those of another.
    whole = (10 * page_size - 1) // page_size * page_size
    for _ in range(3):
        for ids in prompts:
            device, loaded = host.serve(ids)
            assert device + loaded == whole
            assert host.slots.available_size() <= 4 * page_size
    assert host.cache.counters.host_loaded_tokens > 3 * whole
    assert host.cache.counters.device_evicted_tokens > 6 * whole
    # Buffers were touched only when something was to be copied, or while a load was waited for.
    assert host.waited
    host.cache.close()


def test_a_prompt_that_is_not_known_below_is_not_waited_for():
    host = Host(1, ratio=2.0)
    host.serve(list(range(10)))
    found = host.rank.match(list(range(50, 60)), None)
    assert (len(found.slots), found.host_tokens) == (0, 0)
    assert host.rank.load(found.held) is None
    host.cache.close()
