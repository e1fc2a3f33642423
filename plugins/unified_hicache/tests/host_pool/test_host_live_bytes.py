"""Memory of host pools: what is alive after churn, what captures keep, and that the preallocated buffers are written in place."""

import jax
import numpy as np
import pytest

from kvcache_core.errors import IntegrityError
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool


@pytest.mark.parametrize("devices", [1, 4])
def test_bytes_of_a_page_count_every_device(pool_kind, page_kind, devices):
    pool = pool_kind(page_kind("float32", devices).struct, 3)
    assert pool.page_bytes == 4 * (2 * 4 * 4 * 6 + 2 * 4 * 4 * 2 + devices * 5)
    assert pool.budget_bytes == 3 * pool.page_bytes


def check_churn(pool, pages, capacity):
    """Ten times the capacity goes through, in batches of 64 of which one page stays."""
    pages_in = 0
    survivors = []
    bits = pages.bits(64, seed=1)
    while pages_in < 10 * capacity:
        if len(survivors) == capacity - 64:  # full of survivors: the oldest half goes
            pool.free(np.array(survivors[: len(survivors) // 2], np.int32))
            del survivors[: len(survivors) // 2]
        slots = pool.alloc(64)
        pool.put(slots, pages.batch(bits))
        pages_in += 64
        assert pool.live_bytes <= 1.1 * pool.budget_bytes
        survivor = pages_in // 64 % 64
        survivors.append(int(slots[survivor]))
        pool.free(np.delete(slots, survivor))
        assert pool.live_bytes <= 1.1 * pool.budget_bytes
        pool.check_integrity()
    assert len(survivors) > capacity // 64


def test_churn_that_keeps_one_page_in_64_alive(pool_kind, page_kind):
    pages = page_kind("uint8")
    check_churn(pool_kind(pages.struct, 256), pages, 256)


def test_a_pool_of_one_page_and_batches_with_padding(pool_kind, page_kind, same, rows_of):
    """The budget also holds where every batch is mostly padding."""
    pages = page_kind("uint8")
    pool = pool_kind(pages.struct, 1)
    bits = pages.bits(8, seed=2)
    for row in range(8):
        slots = pool.alloc(1)
        pool.put(slots, pages.batch(bits), start=row)
        assert pool.live_bytes <= pool.budget_bytes * 1.1
        assert same(pool.get(slots).to_numpy(), rows_of(bits, [row]))
        assert pool.evict(1).tolist() == slots.tolist()


def test_captured_pages_count_until_they_are_let_go(pool_kind, page_kind):
    pages = page_kind()
    pool = pool_kind(pages.struct, 16)
    resting = pool.live_bytes
    slots = pool.alloc(16)
    pool.put(slots, pages.batch(pages.bits(16, seed=1)))
    captured = pool.get(slots)
    pool.free(slots)
    assert pool.live_bytes == resting + 16 * pool.page_bytes
    batches = captured.batches()
    del captured
    assert pool.live_bytes == resting + 16 * pool.page_bytes
    del batches
    assert pool.live_bytes == resting


def test_a_batch_put_again_after_it_was_empty_counts_once(page_kind):
    """The copies of one gather land one after the other, and the first may be evicted before the second."""
    pages = page_kind()
    pool = PerPagePool(pages.struct, 16)
    batch = pages.batch(pages.bits(16, seed=1))
    for start in (0, 8):
        slots = pool.alloc(8)
        pool.put(slots, batch, start)
        assert pool.live_bytes == 16 * pool.page_bytes
        pool.free(slots)
        assert pool.live_bytes == 16 * pool.page_bytes
    del batch
    assert pool.live_bytes == 0


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
def test_preallocated_buffers_are_written_in_place(page_kind, dtype, devices):
    pages = page_kind(dtype, devices)
    pool = PreallocatedPool(pages.struct, 64)

    def places():
        leaves = jax.tree.leaves(pool._buffers)
        assert {leaf.sharding.memory_kind for leaf in leaves} == {"pinned_host"}
        return [shard.data.unsafe_buffer_pointer() for leaf in leaves for shard in leaf.addressable_shards]

    before = places()
    for turn in range(3):
        pool.put(pool.alloc(16), pages.batch(pages.bits(16, seed=turn)))
    assert places() == before


@pytest.mark.parametrize("devices", [1, 4])
def test_the_calling_thread_never_runs_a_copy_itself(page_kind, devices):
    """The CPU client runs programs of at most 1,000 operations in the thread that calls them, and copies count as none."""
    pages = page_kind("uint8", devices)
    pool = PreallocatedPool(pages.struct, 8)
    one = np.zeros(1, np.int32)
    programs = [pool._read.lower(pool._buffers, one), pool._write.lower(pool._buffers, one, pages.batch(pages.bits(1, seed=1)))]
    for program in programs:
        assert program.compile().cost_analysis()["flops"] > 1000


def never_packs(self):
    return None


def keeps_empty_batches(self, batch, n):
    batch.left -= n


def one_array_a_batch(self):
    """Slots of a gather stay rows of it for ever, and the budget counts slots."""


@pytest.mark.parametrize(
    ("method", "mutant"), [("pack_job", never_packs), ("_leave", keeps_empty_batches), ("_keep_budget", one_array_a_batch)]
)
def test_a_mutant_that_keeps_batches_alive_is_noticed(page_kind, monkeypatch, method, mutant):
    pages = page_kind("uint8")
    monkeypatch.setattr(PerPagePool, method, mutant)
    with pytest.raises((AssertionError, IntegrityError)):
        check_churn(PerPagePool(pages.struct, 256), pages, 256)
