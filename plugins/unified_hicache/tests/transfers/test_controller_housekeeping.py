"""What the controller gives to workers besides waiting, and what it withdraws when it ends."""

import threading
import time
import weakref

import jax
import numpy as np
import pytest

from kvcache_unified_hicache.controller import HiCacheController
from kvcache_unified_hicache.copies import LoadCopy
from kvcache_unified_hicache.host_pool.pack_job import PackJob
from kvcache_unified_hicache.host_pool.page_layout import PageLayout
from kvcache_unified_hicache.host_pool.per_page import PerPagePool

LEFT = [2, 3, 5, 7]


@pytest.fixture
def pool_type():
    """Only pages in memory of their own are ever packed or let go."""
    return PerPagePool


def sparse(rig, page):
    """Slots of four pages, the last of a batch of 16. All batches take 35 pages where 32 are allowed, but not 1.1 times that."""
    rig.gate.write(range(1, 17), page(*range(1, 17)))
    slots = rig.slots(16)
    rig.settle(rig.write(slots, range(1, 17)))
    for n in (16, 2):
        rig.settle(rig.write(rig.slots(n)[:n] if n < 16 else free_but(rig, slots, LEFT), range(1, n + 1)))
    rig.settle(rig.write(rig.slots(1), [1]))
    return [slots[i] for i in LEFT]


def free_but(rig, slots, kept):
    """All other slots go; as many others as there were."""
    rig.hosts["full"].free(np.delete(np.asarray(slots, np.int32), kept))
    return rig.slots(len(slots))


def poll_until(rig, reached):
    until = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < until, "the workers do not do it"
        rig.controller.poll()


def check_packing(rig, page, threads):
    left = sparse(rig, page)
    pool = rig.hosts["full"]
    poll_until(rig, lambda: pool.live_bytes <= pool.budget_bytes)
    pool.check_integrity()
    assert threads
    assert threading.get_ident() not in threads
    rig.settle(rig.load([20, 21, 22, 23], left))
    assert np.array_equal(rig.gate.read([20, 21, 22, 23]), page(*[i + 1 for i in LEFT]))


@pytest.fixture
def packed_by(monkeypatch):
    """The threads that packed."""
    threads, run = [], PackJob.run

    def noted(job):
        threads.append(threading.get_ident())
        run(job)

    monkeypatch.setattr(PackJob, "run", noted)
    return threads


def test_a_worker_packs_what_is_sparse(rig, page, packed_by):
    check_packing(rig, page, packed_by)


def packs_itself(self):
    for pool in self._parts.host_pools.values():
        if (job := pool.pack_job()) is not None:
            job.run()
            pool.finish_packing(job)


def test_the_mutant_that_packs_on_the_owner_thread_is_noticed(rig, page, packed_by, monkeypatch):
    monkeypatch.setattr(HiCacheController, "_pack", packs_itself)
    with pytest.raises(AssertionError):
        check_packing(rig, page, packed_by)


def test_packing_that_fails_is_said_once_and_tried_again_more_rarely(rig, page, monkeypatch, caplog):
    """S9."""
    pack, pack_job = PageLayout.pack, PerPagePool.pack_job
    tries, polled, made = [], [], []

    def fails_thrice(self, pages, rows):
        tries.append(rows)
        if len(tries) <= 3:
            raise MemoryError("planted")
        return pack(self, pages, rows)

    def noted(self):
        job = pack_job(self)
        if job is not None:
            made.append(len(polled))
        return job

    monkeypatch.setattr(PageLayout, "pack", fails_thrice)
    monkeypatch.setattr(PerPagePool, "pack_job", noted)
    sparse(rig, page)
    pool = rig.hosts["full"]

    def reached():
        polled.append(None)
        return pool.live_bytes <= pool.budget_bytes

    poll_until(rig, reached)
    # After 1, 2, 3 failures a job is made at most in every 2nd, 4th, 8th poll.
    assert len(tries) == len(made) == 4
    assert made[3] - made[2] >= 4
    assert len([record for record in caplog.records if "could not be packed" in record.getMessage()]) == 1


def test_a_job_under_way_is_given_back_at_the_end(rig, page, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    run = PackJob.run

    def slow(job):
        begun.set()
        assert go_on.wait(30)
        run(job)

    monkeypatch.setattr(PackJob, "run", slow)
    sparse(rig, page)
    pool = rig.hosts["full"]
    poll_until(rig, begun.is_set)
    go_on.set()
    rig.controller.close()
    pool.check_integrity()
    assert pool.live_bytes <= pool.budget_bytes


def check_let_go(rig, page):
    rig.gate.write([1, 2], page(1, 2))
    slots = rig.slots(2)
    out = rig.write(slots, [1, 2])
    rig.settle(out)
    threads = []
    # The callback runs where the last reference goes.
    watched = weakref.ref(jax.tree.leaves(out.pages)[0], lambda _: threads.append(threading.get_ident()))
    del out
    assert rig.slots(32), "evicts the two"
    until = time.monotonic() + 30
    # The references die before their callbacks run, and the pool's own is one of these.
    while watched() is not None or not threads or rig.hosts["full"].live_bytes:
        assert time.monotonic() < until, "a batch that nobody needs is kept"
        time.sleep(0)
    assert threading.get_ident() not in threads


def test_what_was_evicted_is_let_go_on_a_worker(rig, page):
    check_let_go(rig, page)


def lets_go_itself(self):
    self._parts.discards.take()


def test_the_mutant_that_lets_go_on_the_owner_thread_is_noticed(rig, page, monkeypatch):
    monkeypatch.setattr(HiCacheController, "_let_go", lets_go_itself)
    with pytest.raises(AssertionError):
        check_let_go(rig, page)


def check_close_withdraws(rig, page):
    slots = rig.stored(1)
    rig.load([5], slots)
    while not rig.queue.pending():
        rig.controller.poll()
    rig.controller.close()
    rig.gate.idle()
    assert np.array_equal(rig.gate.read([5]), page(0)), "the page may be somebody else's by now"
    assert rig.committed == []


def test_a_queued_scatter_is_withdrawn_at_the_end(rig, page):
    check_close_withdraws(rig, page)


def test_the_mutant_that_leaves_scatters_queued_at_the_end_is_noticed(rig, page, monkeypatch):
    monkeypatch.setattr(LoadCopy, "withdraw", lambda self: None)
    with pytest.raises(AssertionError, match="somebody else"):
        check_close_withdraws(rig, page)


def test_the_time_of_copies_is_theirs(rig, page, monkeypatch):
    """From dispatch, not from when it was asked for; a batch that several copies share counts once."""
    clock = [100.0]
    for name in ("kvcache_core.transfer_queue", "kvcache_unified_hicache.waiting", "kvcache_unified_hicache.workers"):
        monkeypatch.setattr(f"{name}.perf_counter", lambda: clock[0])
    rig.gate.write([1, 2], page(1, 2))
    slots = rig.slots(2)
    out = [rig.write([slot], [at]) for at, slot in enumerate(slots, 1)]
    clock[0] = 200.0
    rig.gate.idle()
    clock[0] = 203.0
    rig.settle(*out)
    assert 0 <= rig.counters.seconds_moving["d2h"] <= 3
    if rig.controller._parts.async_impl == "future":
        assert rig.counters.seconds_moving["d2h"] == 3
