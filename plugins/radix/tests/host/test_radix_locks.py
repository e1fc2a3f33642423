"""Receipts: stale matches, one use each, early release, what is pinned. Each planted fault is a named mutant, and the test it is
tied to fails under it.
"""

import numpy as np
import pytest

from kvcache_core.contracts.results import Segment
from kvcache_core.errors import KVCacheError, LockError
from kvcache_radix import tree as tree_module
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_radix.victims import VictimHeap

# tests


def test_a_match_used_after_an_eviction_is_stale(make_host, tokens):
    """T14."""
    host = make_host("F")
    prompt = tokens(range(16))
    host.serve(prompt)
    whole = host.cache.match_prefix(prompt)
    assert host.cache.evict("full", 1) == 1
    assert host.cache.lock_ref(whole) is None
    rest = host.cache.match_prefix(prompt)
    assert rest.device_len == 12
    lock = host.cache.lock_ref(rest)
    host.check()
    host.cache.unlock_ref(lock)
    assert host.cache.reset()
    assert host.cache.lock_ref(rest) is None
    host.drain()


def test_a_receipt_is_used_once(make_host, tokens):
    """FAULTS L3."""
    host, other = make_host("F"), make_host("F")
    for each in (host, other):
        each.serve(tokens(range(8)))
    match = host.cache.match_prefix(tokens(range(8)))
    first, second = host.cache.lock_ref(match), host.cache.lock_ref(match)
    host.cache.unlock_ref(first)
    with pytest.raises(LockError, match="8 tokens, released"):
        host.cache.unlock_ref(first)
    with pytest.raises(LockError, match="no longer covers"):
        first.segment("full")
    host.check()
    assert host.cache.size("full").protected == 2, "the second receipt still holds"
    with pytest.raises(LockError, match="another cache"):
        other.cache.unlock_ref(second)
    with pytest.raises(LockError, match="another cache"):
        other.cache.lock_ref(match)
    with pytest.raises(KeyError):
        second.segment("swa")
    other.drain()
    host.cache.unlock_ref(second)
    host.drain()


def test_a_window_is_released_early_and_once(make_host, tokens):
    """LK5: the prefix_closed component goes last."""
    host = make_host("FS")
    host.serve(tokens(range(16)))
    lock = host.cache.lock_ref(host.cache.match_prefix(tokens(range(16))))
    with pytest.raises(LockError, match="released last"):
        host.cache.unlock_ref(lock, "full")
    host.cache.unlock_ref(lock, "swa")
    host.check()
    assert host.cache.size("swa").protected == 0 < host.cache.size("full").protected
    with pytest.raises(LockError, match="released before"):
        host.cache.unlock_ref(lock, "swa")
    with pytest.raises(KeyError):
        host.cache.unlock_ref(lock, "recurrent")
    assert host.cache.evict("swa", 64) == 2
    host.check()
    host.cache.unlock_ref(lock)
    host.drain()


def test_reset_waits_for_every_lock(make_host, tokens):
    host = make_host("F")
    host.serve(tokens(range(8)))
    held = host.cache.lock_ref(host.cache.match_prefix(tokens(range(8))))
    nothing = host.cache.lock_ref(host.cache.match_prefix(tokens(50, 51)))
    assert nothing.length == 0 and len(nothing.segment("full").indices) == 0
    assert not host.cache.reset()
    host.cache.unlock_ref(held)
    assert not host.cache.reset()
    assert host.cache.match_prefix(tokens(range(8))).device_len == 8
    host.cache.unlock_ref(nothing)
    assert host.cache.reset()
    assert host.cache.size("full").free == 64
    host.check()
    host.serve(tokens(range(8)))
    host.drain()


def test_everything_pinned_fails_at_once(make_host, tokens):
    """FAULTS L9: after one look at the heap there is nothing left to look at."""
    host = make_host("F", total=4)
    holder = host.admit(tokens(range(17)))
    assert host.compute(holder, 16)
    assert host.alloc("full", 1) is None
    assert len(host.tree.store.heaps[0][0]) == 0
    assert host.cache.evict("full", 1) == 0
    host.check()
    assert not host.compute(holder, 1), "preempted"
    assert host.events["preemptions"] == 1
    host.drain()


def test_indices_come_as_copies(make_host, tokens):
    """O5: neither the caller's array nor the receipt's is a view of the cache's."""
    host = make_host("F")
    indices = host.alloc("full", 2)
    given = indices.copy()
    host.cache.insert(tokens(range(8)), {"full": (Segment(0, 8, given),)})
    given[:] = 7
    lock = host.cache.lock_ref(host.cache.match_prefix(tokens(range(8))))
    row = lock.segment("full").indices
    assert row.tolist() == indices.tolist() and row.dtype == np.int32
    assert not row.flags.writeable or not np.shares_memory(row, given)
    host.cache.unlock_ref(lock)
    host.check()


# planted faults


def a_lock_does_not_look_again(monkeypatch):
    real = NodeStore.drop

    def planted(store, node, reclaimed):
        parent = node.parent
        real(store, node, reclaimed)
        node.parent = parent

    monkeypatch.setattr(NodeStore, "drop", planted)
    monkeypatch.setattr(RadixTree, "_lockable", lambda *_: True)


def a_receipt_stays_valid(monkeypatch):
    class Keeping(set):
        def remove(self, lock):
            pass

    real = RadixTree.__init__

    def planted(tree, *args, **kwargs):
        real(tree, *args, **kwargs)
        tree.receipts = Keeping()

    monkeypatch.setattr(RadixTree, "__init__", planted)


def an_early_release_is_forgotten(monkeypatch):
    monkeypatch.setattr(tree_module, "RELEASED", -2)


def reset_ignores_empty_locks(monkeypatch):
    real = RadixTree.clear

    def planted(tree):
        tree.receipts = {lock for lock in tree.receipts if lock.length}
        return real(tree)

    monkeypatch.setattr(RadixTree, "clear", planted)


def eviction_ignores_locks(monkeypatch):
    real = VictimHeap.__init__

    def planted(heap, component, bit, candidate):
        real(heap, component, bit, lambda node, cell: cell.device is not None and not cell.device_kids)

    monkeypatch.setattr(VictimHeap, "__init__", planted)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (a_lock_does_not_look_again, test_a_match_used_after_an_eviction_is_stale),
        (a_receipt_stays_valid, test_a_receipt_is_used_once),
        (an_early_release_is_forgotten, test_a_window_is_released_early_and_once),
        (reset_ignores_empty_locks, test_reset_waits_for_every_lock),
        (eviction_ignores_locks, test_everything_pinned_fails_at_once),
    ],
    ids=lambda x: x.__name__,
)
def test_the_planted_fault_is_found(mutant, test, monkeypatch, make_host, tokens):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KVCacheError, pytest.fail.Exception)):
        test(make_host, tokens)
