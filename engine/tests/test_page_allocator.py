"""PageAllocator against a plain set, in random sequences, and its refusals."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvcache_core.errors import DoubleFreeError
from kvcache_engine.pools.page_allocator import PageAllocator


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, dtype=np.int32)


class AllocatorMachine(RuleBasedStateMachine):
    """What was given out is a set of ours; everything else must be free."""

    @initialize(total=st.integers(1, 12))
    def start(self, total: int) -> None:
        self.allocator = PageAllocator(total)
        self.total = total
        self.held: list[int] = []

    @rule(n=st.integers(0, 14))
    def alloc(self, n: int) -> None:
        free = self.total - len(self.held)
        pages = self.allocator.alloc(n)
        if n > free:
            assert pages is None
            return
        assert pages is not None
        assert pages.dtype == np.int32
        assert pages.shape == (n,)
        taken = pages.tolist()
        assert not set(taken) & set(self.held)
        assert len(set(taken)) == n
        assert all(1 <= page <= self.total for page in taken)
        self.held += taken

    @rule(data=st.data())
    def free_some(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.held), unique=True)) if self.held else []
        self.allocator.free(ids(*chosen))
        self.held = [page for page in self.held if page not in chosen]

    @rule(data=st.data())
    def free_wrong(self, data: st.DataObject) -> None:
        """Some pages of ours and one that is free, foreign, the dummy, or there twice: refused, and ours stay ours."""
        mine = data.draw(st.lists(st.sampled_from(self.held), unique=True)) if self.held else []
        not_held = sorted(set(range(-1, self.total + 3)) - set(self.held))
        wrong = data.draw(st.sampled_from([*not_held, *mine]))
        pages = data.draw(st.permutations([*mine, wrong]))
        with pytest.raises(DoubleFreeError, match=f"page {wrong} "):
            self.allocator.free(ids(*pages))

    @invariant()
    def agrees(self) -> None:
        self.allocator.check_integrity()
        assert self.allocator.total == self.total
        assert self.allocator.n_free == self.total - len(self.held)


TestPageAllocator = AllocatorMachine.TestCase


def test_nothing_is_taken_when_it_is_too_much() -> None:
    allocator = PageAllocator(3)
    assert allocator.alloc(4) is None
    assert allocator.n_free == 3
    pages = allocator.alloc(3)
    assert pages is not None
    assert sorted(pages.tolist()) == [1, 2, 3]


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PageAllocator(0)
    with pytest.raises(ValueError, match="cannot allocate -1"):
        PageAllocator(2).alloc(-1)


@pytest.mark.parametrize("pages", [np.array([1.0]), np.array([[1]])])
def test_only_page_numbers_can_be_freed(pages) -> None:
    allocator = PageAllocator(2)
    allocator.alloc(2)
    with pytest.raises(TypeError, match="1-D integer array"):
        allocator.free(pages)
    assert allocator.n_free == 0
