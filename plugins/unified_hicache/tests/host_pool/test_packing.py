"""Sparse batches of the per-page pool: when their pages move, who does it, and what may happen meanwhile."""

import threading
import weakref

import jax
import numpy as np
import pytest

from kvcache_unified_hicache.host_pool.pack_job import PackJob
from kvcache_unified_hicache.host_pool.page_layout import PageLayout
from kvcache_unified_hicache.host_pool.per_page import PACKED, PerPagePool


@pytest.fixture
def pages(page_kind):
    return page_kind("int8", 4)


class Sparse:
    """A pool of 32 slots: a batch of 16 has four pages left, and all arrays take 35 pages, too many but not 1.1 times."""

    def __init__(self, pages):
        self.pool = PerPagePool(pages.struct, 32)
        self.bits = pages.bits(16, seed=1)
        batch = pages.batch(self.bits)
        self.watched = weakref.ref(jax.tree.leaves(batch)[0])
        slots = self.pool.alloc(16)
        self.pool.put(slots, batch)
        self.left = slots[[2, 3, 5, 7]]
        self.pool.free(np.delete(slots, [2, 3, 5, 7]))
        self.others = []
        for size in (16, 2, 1):
            self.others.append(self.pool.alloc(size))
            self.pool.put(self.others[-1], pages.batch(pages.bits(size, seed=size)))

    def content(self):
        return self.pool.get(self.left).to_numpy()


@pytest.fixture
def sparse(pages):
    return Sparse(pages)


def test_there_is_nothing_to_pack_within_the_budget(pages):
    pool = PerPagePool(pages.struct, 32)
    slots = pool.alloc(32)
    pool.put(slots[:16], pages.batch(pages.bits(16, seed=1)))
    pool.free(slots[1:16])
    pool.put(slots[16:], pages.batch(pages.bits(16, seed=2)))
    assert pool.live_bytes == pool.budget_bytes
    assert pool.pack_job() is None


def test_full_batches_are_never_packed(pages):
    pool = PerPagePool(pages.struct, 16)
    slots = pool.alloc(16)
    pool.put(slots, pages.batch(pages.bits(16, seed=1)))
    captured = pool.get(slots)
    pool.put(slots, pages.batch(pages.bits(16, seed=2)))
    assert pool.live_bytes == 2 * pool.budget_bytes, "the capture holds the first batch"
    assert pool.pack_job() is None
    assert len(captured) == 16


def test_a_worker_packs_and_the_batch_goes(sparse, same, rows_of):
    pool = sparse.pool
    job = pool.pack_job()
    assert job.pages == 4
    assert job.frees == 12 * pool.page_bytes
    assert pool.pack_job() is None, "one job at a time for a batch"
    worker = threading.Thread(target=job.run)
    worker.start()
    worker.join()
    pool.finish_packing(job)
    assert sparse.watched() is None
    assert pool.live_bytes == (4 + 16 + 2 + 1) * pool.page_bytes
    assert pool.pack_job() is None
    pool.check_integrity()
    assert same(sparse.content(), rows_of(sparse.bits, [2, 3, 5, 7]))


def check_slots_reused_during_a_job(sparse, pages, same, rows_of):
    pool, left = sparse.pool, sparse.left
    job = pool.pack_job()
    job.run()
    new = pages.bits(1, seed=9)
    pool.free(left[:2])
    again = pool.alloc(1)
    assert again[0] in left[:2]
    pool.put(again, pages.batch(new))
    pool.put(left[2:3], pages.batch(new))
    pool.finish_packing(job)
    pool.check_integrity()
    assert same(pool.get(again).to_numpy(), new)
    assert same(pool.get(left[2:3]).to_numpy(), new)
    assert same(pool.get(left[3:]).to_numpy(), rows_of(sparse.bits, [7]))
    assert sparse.watched() is None


def test_what_happened_to_the_slots_meanwhile_stays(sparse, pages, same, rows_of):
    check_slots_reused_during_a_job(sparse, pages, same, rows_of)


def test_the_mutant_that_overwrites_reused_slots_is_noticed(sparse, pages, same, rows_of, monkeypatch):
    def overwrites_reused_slots(self, job):
        for packed in job.packed:
            for slot, array in packed.items():
                if not self._is_free[slot]:
                    self._drop(np.array([slot], np.int32))
                    self._home[slot] = PACKED
                    self._packed[slot] = array
                    self._live.watch(array, self.page_bytes)

    monkeypatch.setattr(PerPagePool, "finish_packing", overwrites_reused_slots)
    with pytest.raises(AssertionError):
        check_slots_reused_during_a_job(sparse, pages, same, rows_of)


def test_the_mutant_whose_job_keeps_its_batch_is_noticed(sparse, monkeypatch):
    monkeypatch.setattr(PackJob, "clear", lambda self: None)
    job = sparse.pool.pack_job()
    job.run()
    sparse.pool.finish_packing(job)
    assert sparse.watched() is not None


def test_a_batch_that_went_meanwhile(sparse):
    pool = sparse.pool
    job = pool.pack_job()
    job.run()
    pool.free(sparse.left)
    pool.finish_packing(job)
    pool.check_integrity()
    assert sparse.watched() is None
    assert pool.live_bytes == (16 + 2 + 1) * pool.page_bytes


def test_a_job_that_fails_or_never_runs_changes_nothing(sparse, same, rows_of, monkeypatch):
    pool = sparse.pool
    pool.finish_packing(pool.pack_job())

    def no_memory(self, pages, rows):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(PageLayout, "pack", no_memory)
        job = pool.pack_job()
        with pytest.raises(MemoryError):
            job.run()
        pool.finish_packing(job)
    pool.check_integrity()
    assert same(sparse.content(), rows_of(sparse.bits, [2, 3, 5, 7]))
    job = pool.pack_job()
    assert job.pages == 4
    job.run()
    pool.finish_packing(job)
    assert sparse.watched() is None


def test_pages_captured_before_packing_stay(sparse, same, rows_of):
    captured = sparse.pool.get(sparse.left)
    job = sparse.pool.pack_job()
    job.run()
    sparse.pool.finish_packing(job)
    assert sparse.watched() is not None
    assert same(captured.to_numpy(), rows_of(sparse.bits, [2, 3, 5, 7]))


def test_the_emptiest_batches_go_first_and_no_more_than_needed(pages):
    pool = PerPagePool(pages.struct, 100)
    left = {}
    for keep in (9, 3, 6):
        slots = pool.alloc(16)
        pool.put(slots, pages.batch(pages.bits(16, seed=keep)))
        pool.free(slots[keep:])
        left[keep] = slots[:keep]
    pool.put(pool.alloc(64), pages.batch(pages.bits(64, seed=1)))
    # 112 rows are alive for a budget of 100: the batch that gives 13 back is enough.
    assert pool.live_bytes == 99 * pool.page_bytes
    assert {keep for keep, slots in left.items() if pool._home[slots[0]] == PACKED} == {3}
