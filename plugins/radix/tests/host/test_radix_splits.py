"""Splits and the victim queue: the rules LK2 to LK4 and LK7 of the contract. Each planted fault is a named mutant, and the test
it is tied to fails under it.
"""

import pytest

from kvcache_core.contracts.results import Segment
from kvcache_core.errors import KVCacheError
from kvcache_radix import store as store_module
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree

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


def handle_is_taken_as_the_end(monkeypatch):
    real = RadixTree.lock

    def planted(tree, match, length=None, *, host=False):
        if match.handle is not None and length is None and match.handle.parent is not None:
            length = min(match.matched_len, match.handle.start + match.matched_len % 8)
        return real(tree, match, length, host=host)

    monkeypatch.setattr(RadixTree, "lock", planted)


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
        (handle_is_taken_as_the_end, test_a_match_survives_splits),
    ],
    ids=lambda x: x.__name__,
)
def test_the_planted_fault_is_found(mutant, test, monkeypatch, make_host, tokens):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KVCacheError, pytest.fail.Exception)):
        test(make_host, tokens)
