"""Pages of sgl-jax's device pool come back bit for bit, from the rank they belong to, through the gate and our L2.

The pool is a stand-in with the arrays, the mesh and the shardings of `MHATokenToKVPool`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from kvcache_core.contracts.pools import SKIP
from kvcache_core.transfer_queue import TransferQueue
from kvcache_sgl_jax.kv_pages import KVPages
from kvcache_sgl_jax.pool_gate import FULL, Barrier, PoolGate

PAGES, PAGE_SIZE, LAYERS = 6, 4, 2
DTYPES = ["float32", "bfloat16", "float8_e4m3fn", "int8"]


class Pool:
    """Fused keys and values, [(pages + 1) of every rank, page_size, 2 x heads, 1, head_dim], every value different."""

    def __init__(self, dtype="float32", ranks=1, tensor=1):
        devices = np.array(jax.devices()[: ranks * tensor]).reshape(ranks, tensor)
        mesh = jax.sharding.Mesh(devices, ("data", "tensor"), axis_types=(AxisType.Explicit,) * 2)
        self.kv_sharding = NamedSharding(mesh, PartitionSpec("data", None, "tensor", None, None))
        self.page_size = PAGE_SIZE
        self.start_layer = 0
        shape = ((PAGES + 1) * ranks, PAGE_SIZE, 4, 1, 8)
        width = jnp.dtype(dtype).itemsize
        rng = np.random.default_rng(3)
        self.content = [rng.integers(0, 256, (*shape, width), np.uint8).view(dtype).reshape(shape) for _ in range(LAYERS)]
        self.kv_buffer = [jax.device_put(layer, self.kv_sharding) for layer in self.content]

    def replace_buffer(self, kv_buffer):
        self.kv_buffer[:] = kv_buffer

    def read(self):
        return [np.asarray(layer) for layer in self.kv_buffer]


def rows(*numbers):
    return np.array(numbers, np.int32)


def same_bits(left, right):
    return left.tobytes() == right.tobytes()


@pytest.mark.parametrize(
    ("dtype", "ranks", "rank", "tensor"),
    [*((dtype, 1, 0, 1) for dtype in DTYPES), ("bfloat16", 1, 0, 2), ("float32", 2, 0, 1), ("bfloat16", 2, 1, 2)],
)
def test_pages_of_a_rank_go_out_and_come_back_elsewhere_bit_for_bit(dtype, ranks, rank, tensor):
    pool = Pool(dtype, ranks, tensor)
    pages = KVPages(pool, rank, ranks)
    base = rank * (PAGES + 1)
    captured = pages.gather(list(pool.kv_buffer), rows(5, 1, 3))
    for got, layer in zip(captured, pool.content, strict=True):
        assert got.sharding.memory_kind == "pinned_host"
        assert same_bits(np.asarray(got)[:3], layer[base + np.array([5, 1, 3])])
    pool.replace_buffer(pages.scatter(list(pool.kv_buffer), rows(2, SKIP, 6), captured))
    for now, layer in zip(pool.read(), pool.content, strict=True):
        expected = layer.copy()
        expected[base + 2], expected[base + 6] = layer[base + 5], layer[base + 3]
        assert same_bits(now, expected)
    assert pool.kv_buffer[0].sharding == pool.kv_sharding


def test_a_page_is_captured_before_its_buffer_is_written():
    pool = Pool()
    pages = KVPages(pool, 0, 1)
    captured = pages.gather(list(pool.kv_buffer), rows(4))
    other = pages.gather(list(pool.kv_buffer), rows(2))
    pool.replace_buffer(pages.scatter(list(pool.kv_buffer), rows(4), other))
    assert same_bits(np.asarray(captured[0])[:1], pool.content[0][4:5])


def test_the_struct_and_the_table_describe_what_is_captured():
    pool = Pool("bfloat16")
    pages = KVPages(pool, 0, 1)
    captured = pages.gather(list(pool.kv_buffer), rows(1))
    for struct, table, got in zip(pages.host_struct(), pages.page_arrays(), captured, strict=True):
        assert struct.shape == (1, *table.shape) == got.shape
        assert struct.dtype == got.dtype == table.dtype
        assert struct.sharding == got.sharding
    assert [table.name for table in pages.page_arrays()] == ["kv.0", "kv.1"]


def test_pools_that_differ_have_different_identities():
    identities = {KVPages(Pool(dtype), 0, 1).identity for dtype in DTYPES}
    assert len(identities) == len(DTYPES)
    assert KVPages(Pool(ranks=2), 1, 2).identity == KVPages(Pool(), 0, 1).identity


@pytest.mark.parametrize("wrong", [0, -2, PAGES + 1])
def test_pages_that_do_not_exist_are_refused_and_nothing_is_donated(wrong):
    pool = Pool()
    pages = KVPages(pool, 0, 1)
    captured = pages.gather(list(pool.kv_buffer), rows(1))
    with pytest.raises(ValueError, match="pages are 1 to 6"):
        pages.gather(list(pool.kv_buffer), rows(wrong))
    with pytest.raises(ValueError, match="pages are 1 to 6"):
        pages.scatter(list(pool.kv_buffer), rows(wrong), captured)
    with pytest.raises(ValueError, match="need as many pages"):
        pages.scatter(list(pool.kv_buffer), rows(1, 2), captured)
    assert same_bits(pool.read()[0], pool.content[0])


def test_the_gate_waits_for_the_forward_before_it_touches_buffers_and_only_when_something_is_queued():
    pool = Pool()
    pages = KVPages(pool, 0, 1)
    queue = TransferQueue({FULL: pages})
    barrier = Barrier()
    gate = PoolGate(pool, queue, barrier)
    waits: list[int] = []
    barrier.set(lambda: waits.append(queue.pending()))
    gate.flush()
    assert waits == []
    gathered = queue.enqueue_gather(FULL, rows(3))
    gate.flush()
    assert waits == [1]
    assert queue.pending() == 0
    assert gathered.pages is not None
    queue.enqueue_scatter(FULL, rows(6), gathered.pages)
    gate.flush()
    assert same_bits(pool.read()[1][6], pool.content[1][3])


def test_buffers_are_out_once_at_a_time():
    pool = Pool()
    gate = PoolGate(pool, TransferQueue({FULL: KVPages(pool, 0, 1)}), Barrier())
    buffers = gate.take()
    with pytest.raises(RuntimeError, match="already taken"):
        gate.take()
    gate.give(buffers)
    with pytest.raises(RuntimeError, match="without take"):
        gate.give(buffers)
