"""Pages of the engine's device pool through both host pools and back to other pages, bit for bit."""

import jax
import numpy as np
import pytest

from kvcache_engine.mesh import make_mesh
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_unified_hicache.host_pool.page_layout import PageLayout

DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"]


def numbers(*pages):
    return np.array(pages, np.int32)


def content(device, buffers, pages):
    captured = device.gather(buffers, pages)
    return [np.asarray(array)[: len(pages)].view(np.uint8) for array in jax.tree.leaves(captured)]


def equal(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_out_and_in_again(pool_kind, dtype, devices):
    device = PagedKVPool(layers=2, total_pages=24, page_size=4, kv_heads=4, head_dim=8, dtype=dtype, mesh=make_mesh(devices))
    host = pool_kind(device.host_struct(), 16)
    assert host.page_bytes == device.bytes_per_page
    rng = np.random.default_rng(1)

    def random(struct):
        bits = rng.integers(0, 256, (16, *struct.shape[1:-1], struct.shape[-1] * struct.dtype.itemsize), np.uint8)
        return jax.device_put(bits.view(struct.dtype), struct.sharding)

    out_of, into = numbers(*range(1, 14)), numbers(*range(24, 11, -1))
    buffers = device.scatter(device.create(), out_of, jax.tree.map(random, device.host_struct()))
    expected = content(device, buffers, out_of)

    # Two copies of one gather land one after the other, and the device pages are written again before either does.
    batch = device.gather(buffers, out_of)
    buffers = device.scatter(buffers, out_of, jax.tree.map(random, device.host_struct()))
    slots = host.alloc(13)
    host.put(slots[5:], batch, start=5)
    host.put(slots[:5], batch)
    del batch

    captured = host.get(slots)
    host.evict(16)
    for part in captured.batches():
        buffers = device.scatter(buffers, part.targets(into), part.pages)
    assert equal(content(device, buffers, into), expected)

    # A few of them only, from memory of their own.
    again = host.alloc(2)
    one = device.gather(buffers, into[2:3]), device.gather(buffers, into[7:8])
    host.put(again[:1], one[0])
    host.put(again[1:], one[1])
    for part in host.get(again).batches():
        buffers = device.scatter(buffers, part.targets(numbers(3, 2)), part.pages)
    assert equal(content(device, buffers, numbers(3, 2)), [array[[2, 7]] for array in expected])


def test_the_struct_of_an_engine_pool_is_one_that_host_pools_take():
    device = PagedKVPool(layers=1, total_pages=3, page_size=4, kv_heads=2, head_dim=8, mesh=make_mesh(4))
    assert not device.heads_split
    # Replicated over four devices, and therefore stored four times.
    assert PageLayout(device.host_struct()).page_bytes == 4 * device.bytes_per_page
