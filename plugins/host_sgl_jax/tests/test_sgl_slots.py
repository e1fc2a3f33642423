"""Slots of tokens and numbers of pages name the same memory, in both directions and over sgl-jax's allocator."""

import numpy as np
import pytest

from kvcache_conformance.sgl_jax_host import SlotPool
from kvcache_core.errors import DoubleFreeError
from kvcache_sgl_jax.rank_allocator import RankAllocator
from kvcache_sgl_jax.slots import pages_of, slots_of


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_whole_pages_translate_there_and_back(page_size):
    pages = np.array([7, 1, 30, 2], np.int32)
    slots = slots_of(pages, page_size)
    assert slots.dtype == np.int32
    assert slots.tolist() == [page * page_size + i for page in pages for i in range(page_size)]
    back = pages_of(slots, page_size)
    assert back.dtype == np.int32
    assert back.tolist() == pages.tolist()


def test_a_partial_last_page_counts_as_a_page():
    assert pages_of(np.array([8, 9, 10, 11, 20], np.int32), 4).tolist() == [2, 5]


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_nothing_translates_to_nothing(page_size):
    none = np.empty(0, np.int32)
    assert pages_of(none, page_size).tolist() == []
    assert slots_of(none, page_size).tolist() == []


def test_the_translation_never_hands_out_a_view_of_the_page_table():
    row = np.array([3, 4, 5], np.int32)
    pages_of(row, 1)[0] = 99
    slots_of(row, 1)[0] = 99
    assert row.tolist() == [3, 4, 5]


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_rank_takes_and_gives_pages_of_its_own_slots(page_size):
    pool = SlotPool(5, page_size, dp_size=2)
    rank = RankAllocator(pool, 1)
    assert (rank.total, rank.n_free) == (5, 5)
    pages = rank.alloc(3)
    assert pages is not None
    assert pages.tolist() == [1, 2, 3]
    assert pool.available_size(1) == 2 * page_size
    assert pool.available_size(0) == 5 * page_size
    assert rank.alloc(3) is None
    rank.free(pages[:2])
    assert rank.n_free == 4
    rank.free(np.empty(0, np.int32))
    assert rank.n_free == 4


def test_impossible_and_repeated_pages_are_refused_and_none_is_freed():
    rank = RankAllocator(SlotPool(5), 0)
    assert rank.alloc(5) is not None
    for pages in ([0], [6], [2, 2]):
        with pytest.raises(DoubleFreeError):
            rank.free(np.array([1, *pages], np.int32))
    assert rank.n_free == 0
