"""Slots of both host pools: allocation, errors that change nothing, and the order of eviction."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from kvcache_core.errors import DoubleFreeError
from kvcache_unified_hicache.host_pool.base import HostKVPool


def slots_of(*numbers):
    return np.array(numbers, np.int32)


@pytest.fixture
def pages(page_kind):
    return page_kind("uint8")


@pytest.fixture
def filled(pool_kind, pages):
    """A pool of six slots whose pages came in the order 1, 2, 3, 4, 5, 6."""
    pool = pool_kind(pages.struct, 6)
    slots = pool.alloc(6)
    assert slots.tolist() == [1, 2, 3, 4, 5, 6]
    pool.put(slots, pages.batch(pages.bits(8, seed=1)))
    return pool


def test_slots_are_handed_out_all_or_none(pool_kind, pages):
    pool = pool_kind(pages.struct, 5)
    assert (pool.total, pool.n_free) == (5, 5)
    first = pool.alloc(3)
    assert pool.alloc(3) is None
    assert pool.n_free == 2
    second = pool.alloc(2)
    assert sorted([*first, *second]) == [1, 2, 3, 4, 5]
    assert pool.alloc(0).tolist() == []
    assert pool.alloc(1) is None
    pool.free(first)
    assert sorted(pool.alloc(3)) == sorted(first)
    pool.check_integrity()
    with pytest.raises(ValueError, match="cannot allocate -1"):
        pool.alloc(-1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ((2, 2), "twice in one call"),
        ((1, 6), "slot 6 is free already"),
        ((1, 7), "slot 7 was never given out"),
        ((0,), "slot 0 was never"),
    ],
)
def test_a_wrong_free_frees_nothing(filled, wrong, says):
    filled.free(slots_of(6))
    with pytest.raises(DoubleFreeError, match=says):
        filled.free(slots_of(*wrong))
    assert filled.n_free == 1
    filled.check_integrity()
    filled.get(slots_of(1, 2, 3, 4, 5))


def test_what_a_put_refuses_changes_nothing(filled, pages, page_kind, same):
    everything = slots_of(1, 2, 3, 4, 5, 6)
    before = filled.get(everything).to_numpy()
    batch = pages.batch(pages.bits(4, seed=2))
    other_type, split_elsewhere = page_kind("int8"), page_kind("uint8", 4)
    on_device = jax.tree.map(lambda a: jax.device_put(a, a.sharding.with_memory_kind("device")), batch)
    refused = [
        (slots_of(1, 2, 3, 4, 5), batch, 0, "need rows 0 to 5; the batch has 4"),
        (slots_of(1, 2), batch, 3, "need rows 3 to 5"),
        (slots_of(1, 2), batch, -1, "need rows -1 to 1"),
        (slots_of(1, 1), batch, 0, "twice"),
        (slots_of(1, 7), batch, 0, "slot 7 is not allocated"),
        (slots_of(0), batch, 0, "slot 0 is not allocated"),
        (slots_of(1), other_type.batch(other_type.bits(4, seed=2)), 0, "int8.*do not fit"),
        (slots_of(1), {**batch, "state": batch["k"][0]}, 0, "do not fit"),
        (slots_of(1), {"k": batch["k"]}, 0, "structure"),
        (slots_of(1), on_device, 0, "must be in pinned_host"),
        (slots_of(1), split_elsewhere.batch(split_elsewhere.bits(4, seed=2)), 0, "laid out"),
    ]
    for slots, given, start, says in refused:
        with pytest.raises(ValueError, match=says):
            filled.put(slots, given, start)
        filled.check_integrity()
    assert same(filled.get(everything).to_numpy(), before)


def test_what_a_get_refuses(filled):
    filled.free(slots_of(2))
    with pytest.raises(ValueError, match="slot 2 is not allocated"):
        filled.get(slots_of(1, 2))
    assert filled.alloc(1).tolist() == [2]
    with pytest.raises(ValueError, match="slot 2 has no content"):
        filled.get(slots_of(1, 2))


def test_nothing_to_do(filled):
    nothing = slots_of()
    assert filled.get(nothing).batches() == ()
    assert len(filled.get(nothing)) == 0
    filled.free(nothing)
    assert filled.evict(0).tolist() == []
    filled.check_integrity()


def test_another_thread_is_refused(filled, pages):
    batch = pages.batch(pages.bits(1, seed=3))
    one = slots_of(1)
    calls = [
        lambda: filled.alloc(1),
        lambda: filled.free(one),
        lambda: filled.put(one, batch),
        lambda: filled.get(one),
        lambda: filled.evict(1),
    ]
    with ThreadPoolExecutor(1) as other:
        for call in calls:
            with pytest.raises(RuntimeError, match="only by the thread that used it first"):
                other.submit(call).result()
    filled.check_integrity()


def test_the_oldest_go_first_in_order(filled):
    assert filled.evict(2).tolist() == [1, 2]
    assert filled.n_free == 2
    assert filled.evict(3).tolist() == [3, 4, 5]
    assert filled.evict(5).tolist() == [6]
    assert filled.evict(1).tolist() == []
    filled.check_integrity()


def check_get_promotes(pool):
    pool.get(slots_of(3, 1))
    assert pool.evict(6).tolist() == [2, 4, 5, 6, 3, 1]


def test_a_get_promotes(filled):
    check_get_promotes(filled)


def promotes_only_what_is_put(pool, slots):
    """The order of arrival: FIFO instead of LRU."""
    for slot in slots:
        pool._used.setdefault(slot)


def promotes_to_the_wrong_end(pool, slots):
    pool._used = dict.fromkeys(slots) | pool._used


@pytest.mark.parametrize("mutant", [promotes_only_what_is_put, promotes_to_the_wrong_end])
def test_a_mutant_whose_lru_is_not_promoted_is_noticed(filled, monkeypatch, mutant):
    monkeypatch.setattr(HostKVPool, "_touch", mutant)
    with pytest.raises(AssertionError):
        check_get_promotes(filled)


def test_a_put_promotes(filled, pages):
    filled.put(slots_of(2), pages.batch(pages.bits(1, seed=4)))
    assert filled.evict(6).tolist() == [1, 3, 4, 5, 6, 2]


def test_slots_that_wait_for_their_content_are_no_victims(pool_kind, pages):
    pool = pool_kind(pages.struct, 4)
    waiting, held = pool.alloc(2), pool.alloc(2)
    pool.put(held, pages.batch(pages.bits(2, seed=5)))
    assert pool.evict(4).tolist() == held.tolist()
    pool.put(waiting, pages.batch(pages.bits(2, seed=6)))
    assert pool.evict(4).tolist() == waiting.tolist()


def test_a_slot_given_out_again_starts_anew(filled, pages):
    assert filled.evict(1).tolist() == [1]
    assert filled.alloc(1).tolist() == [1]
    assert filled.evict(1).tolist() == [2]
    filled.put(slots_of(1), pages.batch(pages.bits(1, seed=7)))
    assert filled.evict(6).tolist() == [3, 4, 5, 6, 1]


def test_somebody_else_chooses_the_victims(pool_kind, pages):
    asked = []

    def victims(n):
        asked.append(n)
        return slots_of(4, 2, 3)

    pool = pool_kind(pages.struct, 4, victims)
    pool.put(pool.alloc(4), pages.batch(pages.bits(4, seed=8)))
    pool.get(slots_of(4))
    assert pool.evict(2).tolist() == [4, 2, 3]
    assert asked == [2]
    assert pool.n_free == 3
    pool.check_integrity()
    with pytest.raises(DoubleFreeError):
        pool.evict(1)


def test_pools_that_cannot_be(pool_kind, pages):
    with pytest.raises(ValueError, match="at least one slot"):
        pool_kind(pages.struct, 0)
    with pytest.raises(ValueError, match="at least one array"):
        pool_kind({}, 1)
    state = pages.struct["state"]
    on_device = jax.ShapeDtypeStruct(state.shape, state.dtype, sharding=state.sharding.with_memory_kind("device"))
    with pytest.raises(ValueError, match="pinned_host"):
        pool_kind({"state": on_device}, 1)
    with pytest.raises(ValueError, match="leading axis of 1"):
        pool_kind({"state": jax.ShapeDtypeStruct((2, 5), state.dtype, sharding=state.sharding)}, 1)
