"""Locks, splits and the victim queue: the traps of the contract's section 10 that need no second tier. Each planted fault below
is a named mutant, and the directed test beside it fails under it.
"""

import numpy as np
import pytest

from kvcache_core.contracts.results import Segment
from kvcache_core.errors import KVCacheError, LockError
from kvcache_radix import store as store_module
from kvcache_radix import tree as tree_module
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_radix.victims import VictimHeap

# tests


def test_a_split_of_a_locked_node_locks_both_parts(make_host, tokens):
    """LK3, FAULTS L2."""
    host = make_host("F")
    host.serve(tokens(range(16)))
    holder = host.admit(tokens(range(16), 99))
    host.serve(tokens(range(8), range(50, 58)))
    assert host.events["splits of locked nodes"] == 1
    assert host.cache.size("full").protected == 4
    host.check()
    assert host.cache.evict("full", 64) == 2
    host.check()
    host.abort(holder)
    host.drain()


def test_a_state_and_its_lock_stay_at_the_end_of_a_split_node(make_host, tokens):
    """LK2 and LK3 for a component with one unit at a node's end (T5)."""
    host = make_host("R")
    host.serve(tokens(range(16)))
    holder = host.admit(tokens(range(16), 99))
    assert holder.lock.length == 16
    host.serve(tokens(range(8), range(50, 58)), chunk=8)
    assert host.events["splits of locked nodes"] == 1
    host.check()
    (slot,) = holder.lock.segment("recurrent").indices.tolist()
    host.abort(holder)
    host.check()
    assert host.cache.match_prefix(tokens(range(16))).device_len == 16
    assert host.pools["recurrent"].content[slot] != -1
    host.drain()


def test_a_window_that_begins_inside_a_node_is_released_after_a_split(make_host, tokens):
    """LK2 (T4): the receipt names the locked node's start, not the window's first position."""
    host = make_host("FS", window=6)
    prompt = tokens(range(16))
    indices = {name: host.alloc(name, 4) for name in host.paged}
    host.cache.insert(prompt, {name: (Segment(0, 16, indices[name]),) for name in host.paged})
    lock = host.cache.lock_ref(host.cache.match_prefix(prompt))
    other = host.cache.lock_ref(host.cache.match_prefix(prompt), 8)
    host.check()
    window = lock.segment("swa")
    assert (window.start, window.end, window.indices.tolist()) == (8, 16, indices["swa"][2:].tolist())
    host.cache.unlock_ref(lock)
    host.check()
    host.cache.unlock_ref(other)
    host.drain()


def test_what_was_popped_while_locked_is_queued_again(make_host, tokens):
    """LK7 (T6): otherwise memory is unevictable for ever, without an error."""
    host = make_host("F")
    host.serve(tokens(range(16)))
    holder = host.admit(tokens(range(16), 99))
    assert host.cache.evict("full", 4) == 0
    host.abort(holder)
    host.check()
    assert host.cache.evict("full", 4) == 4


def test_a_parent_is_queued_when_its_last_child_goes(make_host, tokens):
    """LK7."""
    host = make_host("F")
    host.serve(tokens(range(8)))
    host.serve(tokens(range(8), range(20, 28)))
    host.serve(tokens(range(8), range(30, 38)))
    assert host.cache.evict("full", 4) == 4
    host.check()
    assert host.cache.evict("full", 2) == 2
    host.check()


def test_the_head_of_a_split_is_queued(make_host, tokens):
    """LK7, seen with a window, whose inner nodes are victims too."""
    host = make_host("S", window=16)
    first, second = host.alloc("swa", 4), host.alloc("swa", 2)
    host.cache.insert(tokens(range(16)), {"swa": (Segment(0, 16, first),)})
    host.cache.insert(tokens(range(8), range(50, 58)), {"swa": (Segment(8, 16, second),)})
    assert host.events["splits"] == 1
    host.check()
    assert host.cache.evict("swa", 6) == 6
    host.drain()


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


def test_a_match_survives_splits(make_host, tokens):
    """LK4: the tail keeps identity and end, so a handle climbs to the part that it still needs."""
    host = make_host("F")
    prompt = tokens(range(16))
    host.serve(prompt)
    matches = [host.cache.match_prefix(prompt[:n]) for n in (4, 8, 12, 16)]
    locks = [host.cache.lock_ref(match) for match in matches]
    assert [lock.length for lock in locks] == [4, 8, 12, 16]
    row = locks[3].segment("full").indices
    for lock in locks:
        assert lock.segment("full").indices.tolist() == row[: lock.length // 4].tolist()
    host.check()
    for lock in locks:
        host.cache.unlock_ref(lock)
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


# planted faults


def lock_count_stays_on_split_tail(monkeypatch):
    real = store_module._split_cell

    def planted(geometry, tail, cut):
        head = real(geometry, tail, cut)
        head.locks = 0
        return head

    monkeypatch.setattr(store_module, "_split_cell", planted)


def state_lock_goes_to_both_parts(monkeypatch):
    real = store_module._split_cell

    def planted(geometry, tail, cut):
        head = real(geometry, tail, cut)
        head.locks = tail.locks
        return head

    monkeypatch.setattr(store_module, "_split_cell", planted)


def receipt_stores_the_first_needed_position(monkeypatch):
    real = RadixTree._pin_path

    def planted(tree, node, c, need):
        real(tree, node, c, need)
        return need

    monkeypatch.setattr(RadixTree, "_pin_path", planted)


def state_receipt_stores_the_nodes_start(monkeypatch):
    real = RadixTree.lock

    def planted(tree, match, length=None, *, host=False):
        lock = real(tree, match, length, host=host)
        for c, geometry in enumerate(tree.store.geometries):
            if lock is not None and lock.node is not None and geometry.at_node_end:
                lock.stops[c] = lock.node.start
        return lock

    monkeypatch.setattr(RadixTree, "lock", planted)


def nothing_is_queued_on(caller):
    def planted_in(monkeypatch):
        real = getattr(NodeStore, caller)

        def planted(store, *args, **kwargs):
            with monkeypatch.context() as inside:
                inside.setattr(NodeStore, "offer", lambda self, node, c: None)
                return real(store, *args, **kwargs)

        monkeypatch.setattr(NodeStore, caller, planted)

    planted_in.__name__ = f"nothing_is_queued_on_{caller}"
    return planted_in


def a_lock_does_not_look_again(monkeypatch):
    real = NodeStore.drop

    def planted(store, node, reclaimed):
        parent = node.parent
        real(store, node, reclaimed)
        node.parent = parent

    monkeypatch.setattr(NodeStore, "drop", planted)
    monkeypatch.setattr(RadixTree, "_lockable", lambda tree, node, length, host: True)


def handle_is_taken_as_the_end(monkeypatch):
    real = RadixTree.lock

    def planted(tree, match, length=None, *, host=False):
        if match.handle is not None and length is None and match.handle.parent is not None:
            length = min(match.matched_len, match.handle.start + match.matched_len % 8)
        return real(tree, match, length, host=host)

    monkeypatch.setattr(RadixTree, "lock", planted)


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
        (lock_count_stays_on_split_tail, test_a_split_of_a_locked_node_locks_both_parts),
        (state_lock_goes_to_both_parts, test_a_state_and_its_lock_stay_at_the_end_of_a_split_node),
        (state_receipt_stores_the_nodes_start, test_a_state_and_its_lock_stay_at_the_end_of_a_split_node),
        (receipt_stores_the_first_needed_position, test_a_window_that_begins_inside_a_node_is_released_after_a_split),
        (nothing_is_queued_on("unpin"), test_what_was_popped_while_locked_is_queued_again),
        (nothing_is_queued_on("take"), test_a_parent_is_queued_when_its_last_child_goes),
        (nothing_is_queued_on("split"), test_the_head_of_a_split_is_queued),
        (a_lock_does_not_look_again, test_a_match_used_after_an_eviction_is_stale),
        (handle_is_taken_as_the_end, test_a_match_survives_splits),
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
