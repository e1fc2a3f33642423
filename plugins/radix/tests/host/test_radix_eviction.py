"""How much is evicted, what goes along, and at what cost. Each planted fault is a named mutant, and the test it is tied to fails
under it.
"""

import numpy as np
import pytest

from kvcache_core.contracts.results import full
from kvcache_core.errors import KVCacheError
from kvcache_radix.tree import RadixTree
from kvcache_radix.victims import VictimHeap

# tests


@pytest.mark.parametrize("n", range(1, 10))
def test_exactly_what_was_asked_for_is_freed(make_host, tokens, n):
    """FAULTS P2: the last victim is trimmed at a page boundary, from its end."""
    host = make_host("F")
    host.serve(tokens(range(16)))
    host.serve(tokens(range(40, 56)))
    free = host.pools["full"].n_free
    assert host.cache.evict("full", n) == min(n, 8)
    assert host.pools["full"].n_free == free + min(n, 8)
    assert host.cache.match_prefix(tokens(range(16))).device_len == max(0, 16 - 4 * n)
    assert host.cache.match_prefix(tokens(range(40, 56))).device_len == min(16, max(0, 32 - 4 * n))
    assert host.cache.counters.device_evicted_tokens == 4 * min(n, 8)
    host.drain()


@pytest.mark.parametrize("n", [0, -1])
def test_nothing_asked_for_nothing_freed(make_host, tokens, n):
    host = make_host("F")
    host.serve(tokens(range(16)))
    assert host.cache.evict("full", n) == 0
    host.check()
    assert host.cache.match_prefix(tokens(range(16))).device_len == 16


def test_the_cost_does_not_grow_with_the_tree(make_host, tokens):
    """FAULTS P2, in looks at candidates instead of seconds."""
    looks = []
    for leaves in (20, 2000):
        host = make_host("F", page=1, total=leaves + 8)
        for i in range(leaves):
            host.cache.insert(tokens(i), full(host.alloc("full", 1), 1))
        heap = host.tree.store.heaps[0][0]
        count, real = [0], heap._candidate

        def counted(node, cell, count=count, real=real):
            count[0] += 1
            return real(node, cell)

        heap._candidate = counted
        for i in range(10):
            assert host.cache.evict("full", 1) == 1
            assert host.cache.match_prefix(tokens(i)).matched_len == 0
        looks.append(count[0])
    assert looks[0] == looks[1]


def test_a_full_victim_takes_the_other_components_along(make_host, tokens):
    host = make_host("FSR")
    host.serve(tokens(range(17)), chunk=8)
    assert host.cache.evict("full", 64) == 4
    host.check()
    assert all(host.cache.size(name).free == 64 for name in host.geometries)


def test_a_window_goes_without_the_rest(make_host, tokens):
    host = make_host("FS")
    host.serve(tokens(range(16)))
    assert host.cache.evict("swa", 64) == 2
    host.check()
    match = host.cache.match_prefix(tokens(range(16)))
    assert (match.device_len, match.matched_len, host.cache.size("full").evictable) == (0, 16, 4)
    host.drain()


def test_dead_entries_do_not_pile_up(make_host):
    """FAULTS L8: a heap that nobody evicts from must not keep what other components deleted."""
    host = make_host("FS", page=1, total=8, window=2)
    for i in range(1500):
        host.serve(np.array([i, i + 1, i + 2], np.int32))
    assert all(len(heap) < 200 for heap in host.tree.store.heaps[0])
    host.drain()


# planted faults


def victims_go_whole(monkeypatch):
    real = RadixTree.victim
    monkeypatch.setattr(RadixTree, "victim", lambda tree, c, n, tier=0: real(tree, c, 1 << 30, tier))


def heaps_are_scanned(monkeypatch):
    real = VictimHeap.pop

    def planted(heap):
        for _, _, node in heap.entries():
            heap.is_candidate(node)
        return real(heap)

    monkeypatch.setattr(VictimHeap, "pop", planted)


def dead_entries_stay(monkeypatch):
    monkeypatch.setattr(VictimHeap, "bury", lambda heap, cell: None)


def one_page_is_trimmed(make_host, tokens):
    test_exactly_what_was_asked_for_is_freed(make_host, tokens, 1)


def pile(make_host, tokens):
    test_dead_entries_do_not_pile_up(make_host)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (victims_go_whole, one_page_is_trimmed),
        (heaps_are_scanned, test_the_cost_does_not_grow_with_the_tree),
        (dead_entries_stay, pile),
    ],
    ids=lambda x: x.__name__,
)
def test_the_planted_fault_is_found(mutant, test, monkeypatch, make_host, tokens):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KVCacheError)):
        test(make_host, tokens)
