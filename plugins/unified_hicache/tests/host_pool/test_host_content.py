"""What both host pools hold, bit for bit: every dtype, one device and four, and slots that are reused while they are read."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from kvcache_core.contracts.pools import SKIP
from kvcache_unified_hicache.host_pool.captured import CapturedPages
from kvcache_unified_hicache.host_pool.page_layout import PageSource
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool

DTYPES = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"]


def arrays_of(captured):
    return [leaf for batch in captured.batches() for leaf in jax.tree.leaves(batch.pages)]


def scattered(captured, total):
    """What scattering the captured pages to the device pages 0..n-1 in reverse order leaves there, through the batches alone."""
    indices = np.arange(len(captured), dtype=np.int32)[::-1].copy()
    device = {}
    for batch in captured.batches():
        for row, target in enumerate(batch.targets(indices).tolist()):
            if target != SKIP:
                assert target not in device, "a page is written twice"
                device[target] = jax.tree.map(lambda array, row=row: np.asarray(array)[row], batch.pages)
    assert sorted(device) == list(range(total))
    return jax.tree.map(lambda *rows: np.stack(rows), *[device[total - 1 - i] for i in range(total)])


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_come_back_bit_for_bit(pool_kind, page_kind, dtype, devices, same, rows_of):
    pages = page_kind(dtype, devices)
    pool = pool_kind(pages.struct, 40)
    first, second = pages.bits(16, seed=1), pages.bits(32, seed=2)
    # Rows from the middle of one batch to slots in no order, and more than half of another.
    slots = pool.alloc(40)[::-1].copy()
    a, b = slots[:7], slots[7:40]
    pool.put(a, pages.batch(first), start=5)
    pool.put(b[:32], pages.batch(second))
    pool.check_integrity()
    assert same(pool.get(a).to_numpy(), rows_of(first, slice(5, 12)))
    assert same(pool.get(b[:32]).to_numpy(), second)
    mixed = pool.get(np.concatenate([b[3:1:-1], a[[6, 0]], b[20:22]]))
    expected = jax.tree.map(lambda x, y: np.concatenate([y[3:1:-1], x[[11, 5]], y[20:22]]), first, second)
    assert same(mixed.to_numpy(), expected)
    assert same(scattered(mixed, 6), expected)
    assert same(scattered(pool.get(b[:32]), 32), second)
    struct = jax.tree.leaves(pages.struct)
    for captured in (mixed, pool.get(b[:32]), pool.get(a)):
        arrays = arrays_of(captured)
        assert {array.sharding.memory_kind for array in arrays} == {"pinned_host"}
        for i, array in enumerate(arrays):
            assert array.sharding.is_equivalent_to(struct[i % len(struct)].sharding, array.ndim)


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_pages_come_back_bit_for_bit(page_kind, dtype, devices, same, rows_of):
    pages = page_kind(dtype, devices)
    pool = PerPagePool(pages.struct, 16)
    bits = pages.bits(16, seed=3)
    slots = pool.alloc(16)
    pool.put(slots, pages.batch(bits))
    pool.free(slots[::2])
    extra = pool.alloc(8)
    pool.put(extra, pages.batch(pages.bits(8, seed=4)))
    assert pool.live_bytes == 16 * pool.page_bytes, "the first batch must have been packed"
    pool.check_integrity()
    captured = pool.get(slots[1::2])
    assert captured.needs_assembly
    assert same(captured.to_numpy(), rows_of(bits, slice(1, None, 2)))
    assert same(scattered(captured, 8), rows_of(bits, slice(1, None, 2)))
    packed = list(pool._packed.values())
    assert len(packed) == 8
    assert {array.sharding.memory_kind for array in (*packed, *arrays_of(captured))} == {"pinned_host"}


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float32"])
def test_every_bit_pattern_of_a_small_type(pool_kind, dtype, same):
    kind = jax.numpy.dtype(dtype)
    on_host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    count = 1 << (8 * kind.itemsize)
    bits = np.arange(count, dtype=np.uint16 if kind.itemsize == 2 else np.uint32)
    rows = bits.astype(np.uint16 if kind.itemsize == 2 else np.uint8).view(kind).reshape(4, -1)
    pool = pool_kind(jax.ShapeDtypeStruct((1, rows.shape[1]), kind, sharding=on_host), 6)
    slots = pool.alloc(4)
    pool.put(slots, jax.device_put(rows, on_host))
    captured = pool.get(slots)
    assert same(captured.to_numpy(), rows)
    # The other way out: assembled from a quarter of a batch and a page of another.
    more = pool.alloc(1)
    pool.put(more, jax.device_put(rows[:1], on_host))
    assert same(pool.get(np.concatenate([slots[2:3], more])).to_numpy(), rows[[2, 0]])


def check_reuse_while_captured(pool, pages, same):
    contents = [pages.bits(16, seed=seed) for seed in range(5)]
    captured = []
    for turn in range(30):
        slots = pool.alloc(16)
        pool.put(slots, pages.batch(contents[turn % 5]))
        captured.append(pool.get(slots))
        pool.free(slots)
    pool.check_integrity()
    assert [same(got.to_numpy(), contents[turn % 5]) for turn, got in enumerate(captured)] == [True] * 30


@pytest.mark.parametrize("devices", [1, 4])
def test_a_slot_is_reused_while_a_copy_out_of_it_runs(pool_kind, page_kind, devices, same):
    """FAULTS B4. Nothing waits: many captures are outstanding while their slots get other pages."""
    pages = page_kind("float32", devices)
    check_reuse_while_captured(pool_kind(pages.struct, 16), pages, same)


class ReadLate:
    """Not a capture but a promise to look at the slots later."""

    def __init__(self, pool, slots):
        self.pool = pool
        self.slots = slots

    def to_numpy(self):
        pool = self.pool
        found = [pool._batches.get(home, pool.last) for home in pool._home[self.slots].tolist()]
        rows = pool._row[self.slots].tolist()
        sources = [PageSource(batch.pages, row) for batch, row in zip(found, rows, strict=True)]
        return CapturedPages(pool._layout, sources).to_numpy()


class ReadsSlotsLate(PerPagePool):  # pyright: ignore[reportGeneralTypeIssues]
    """The content of a slot is looked up when it is read, as a pool of mutable buffers without captures would."""

    def _put(self, slots, pages, start, n_rows):
        super()._put(slots, pages, start, n_rows)
        self.last = self._find(pages)

    def _get(self, slots):
        return ReadLate(self, slots)


class WritesInPlace(PreallocatedPool):  # pyright: ignore[reportGeneralTypeIssues]
    """A capture is a view of the buffers, which the next put writes."""

    def _get(self, slots):
        self._buffers = jax.tree.map(lambda leaf: jax.device_put(np.array(leaf), leaf.sharding), self._buffers)
        rows = [slot - 1 for slot in slots]
        self.held = [*getattr(self, "held", []), self._buffers]
        return CapturedPages(self._layout, [PageSource(self._buffers, row) for row in rows])


@pytest.mark.parametrize("mutant", [ReadsSlotsLate, WritesInPlace])
def test_a_mutant_that_reads_reused_slots_is_noticed(page_kind, same, mutant):
    pages = page_kind()
    with pytest.raises((AssertionError, RuntimeError)):
        check_reuse_while_captured(mutant(pages.struct, 16), pages, same)


def test_a_worker_assembles_while_the_slots_are_reused(pool_kind, page_kind, same, rows_of):
    pages = page_kind("int8", 4)
    pool = pool_kind(pages.struct, 32)
    old, new = pages.bits(16, seed=1), pages.bits(16, seed=2)
    some = np.array([1, 4, 9], np.int32)
    with ThreadPoolExecutor(1) as worker:
        for _ in range(10):
            slots = pool.alloc(16)
            pool.put(slots, pages.batch(old))
            captured = pool.get(slots[some])
            work = worker.submit(captured.to_numpy)
            pool.free(slots)
            again = pool.alloc(16)
            assert set(again) & set(slots)
            pool.put(again, pages.batch(new))
            assert same(work.result(), rows_of(old, some))
            assert same(pool.get(again).to_numpy(), new)
            pool.free(again)


def test_captured_pages_are_the_same_in_every_call(pool_kind, page_kind):
    pages = page_kind()
    pool = pool_kind(pages.struct, 8)
    slots = pool.alloc(8)
    pool.put(slots, pages.batch(pages.bits(8, seed=1)))
    captured = pool.get(slots[:2])
    first = captured.batches()
    assert captured.batches() is first
    assert not captured.needs_assembly
    jax.block_until_ready([batch.pages for batch in first])
    assert captured.is_ready()


def test_a_slot_asked_for_twice_comes_twice(pool_kind, page_kind, same, rows_of):
    pages = page_kind()
    pool = pool_kind(pages.struct, 8)
    slots = pool.alloc(8)
    bits = pages.bits(8, seed=1)
    pool.put(slots, pages.batch(bits))
    twice = [5, 5, 1, 2, 3, 4, 6, 7, 0]
    captured = pool.get(slots[twice])
    assert same(captured.to_numpy(), rows_of(bits, twice))
    assert same(scattered(captured, 9), rows_of(bits, twice))


def test_more_pages_than_one_assembled_batch_takes(page_kind, same, rows_of):
    pages = page_kind("uint8")
    pool = PerPagePool(pages.struct, 150)
    bits = pages.bits(150, seed=1)
    slots = pool.alloc(150)
    for i in range(150):
        pool.put(slots[i : i + 1], pages.batch(rows_of(bits, slice(i, i + 1))))
    captured = pool.get(slots)
    assert captured.needs_assembly
    assert [len(batch.positions) for batch in captured.batches()] == [64, 64, 32]
    assert same(captured.to_numpy(), bits)
    assert same(scattered(captured, 150), bits)
