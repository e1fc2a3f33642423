"""Keys keep prefixes apart, and roots and empty nodes go with what they held. Each planted fault is a named mutant, and the test
it is tied to fails under it.
"""

from array import array

import numpy as np
import pytest

from kvcache_core.contracts.results import Segment, full
from kvcache_core.errors import KVCacheError
from kvcache_radix.store import NodeStore

# tests


def segment(host, name, start, end):
    n = 1 if name == "recurrent" else (end - start) // host.page
    return Segment(start, end, host.alloc(name, n))


def test_other_extra_keys_never_hit(make_host, tokens):
    """FAULTS K1 and K2 in memory: parts are framed, absent is not empty, a part's place is its meaning."""
    keys = [(), (b"",), (b"", b""), (b"a", b"bc"), (b"ab", b"c"), (b"abc",), (b"c", b"ab"), (b"a", b"bc", b"")]
    host = make_host("F", total=64)
    for key in keys:
        assert host.serve(tokens(range(9)), key) == 0
        host.check()
    for key in keys:
        assert host.serve(tokens(range(9)), key) == 8
    assert len(host.tree.store.roots) == len(keys)
    assert host.events["splits"] == 0
    assert host.cache.match_prefix(tokens(range(9)), (b"b",)).matched_len == 0
    host.drain()


def test_roots_go_with_their_last_child(make_host, tokens):
    """T18: one salt a user must not leak a root a user."""
    host = make_host("F", total=8)
    for user in range(40):
        host.serve(tokens(range(9)), (b"salt", str(user).encode()))
        host.check()
    assert len(host.tree.store.roots) == 4
    host.drain()


def test_empty_nodes_are_pruned_upwards(make_host, tokens):
    """T17 and T24, for components without a prefix_closed one: holes stay while something below them lives, then all go once."""
    host = make_host("S", window=4)
    for tail in (50, 60):
        pages = segment(host, "swa", 12, 16)
        host.cache.insert(tokens(range(8), range(tail, tail + 8)), {"swa": (pages,)})
        host.check()
    assert host.cache.evict("swa", 1) == 1
    host.check()
    assert host.cache.match_prefix(tokens(range(8), range(60, 68))).device_len == 16
    host.drain()


def test_what_cannot_be_a_key_raises(make_host, tokens):
    host = make_host("F")
    host.serve(tokens(range(16)))
    wide = np.arange(16)
    for call in (host.cache.match_prefix, lambda ids, key=(): host.cache.insert(ids, {}, key)):
        for bad in (wide, wide.tolist(), wide.astype(np.uint32)):
            with pytest.raises(TypeError):
                call(bad)
        for bad in (
            -tokens(range(16)),
            tokens(range(8), -1, range(7)),
            tokens(range(20, 24), -1, range(3)),
            tokens(range(32))[::2],
        ):
            with pytest.raises(ValueError):  # noqa: PT011 - which text depends on the case
                call(bad)
        for key in ("a", ["a"], ("a",), None):
            with pytest.raises(TypeError):
                call(tokens(range(4)), key)
    with pytest.raises(ValueError, match="whole pages"):
        host.cache.insert(tokens(range(7)), {})
    with pytest.raises(ValueError, match="cannot lock"):
        host.cache.lock_ref(host.cache.match_prefix(tokens(range(16))), 6)
    with pytest.raises(ValueError, match="cannot lock"):
        host.cache.lock_ref(host.cache.match_prefix(tokens(range(8))), 16)
    host.drain()


def test_array_array_is_the_same_key(make_host, tokens):
    host = make_host("F")
    host.serve(tokens(range(16)))
    assert host.cache.match_prefix(array("i", range(16))).device_len == 16
    assert host.cache.match_prefix(array("i")).matched_len == 0
    pages = host.alloc("full", 2)
    assert host.cache.insert(array("i", range(8)), full(pages, 4)).duplicates["full"].tolist() == pages.tolist()


# planted faults


def with_roots(roots):
    def planted_in(monkeypatch):
        real = NodeStore.__init__

        def planted(store, *args, **kwargs):
            real(store, *args, **kwargs)
            store.roots = roots()

        monkeypatch.setattr(NodeStore, "__init__", planted)

    planted_in.__name__ = roots.__name__
    return planted_in


class _Renaming(dict):
    rename = staticmethod(lambda key: key)

    def get(self, key, default=None):
        return super().get(self.rename(key), default)

    def __setitem__(self, key, value):
        super().__setitem__(self.rename(key), value)

    def __delitem__(self, key):
        super().__delitem__(self.rename(key))


class ExtraKeyIsIgnored(_Renaming):
    rename = staticmethod(lambda key: ())


class ExtraKeyIsJoined(_Renaming):
    rename = staticmethod(b"".join)


class EmptyRootsStay(dict):
    def __delitem__(self, key):
        pass


def only_the_first_empty_node_is_pruned(monkeypatch):
    def planted(store, node, reclaimed):
        if node.parent is not None and not node.children and all(cell.empty for cell in node.cells):
            store.drop(node, reclaimed)

    monkeypatch.setattr(NodeStore, "settle", planted)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (with_roots(ExtraKeyIsIgnored), test_other_extra_keys_never_hit),
        (with_roots(ExtraKeyIsJoined), test_other_extra_keys_never_hit),
        (with_roots(EmptyRootsStay), test_roots_go_with_their_last_child),
        (only_the_first_empty_node_is_pruned, test_empty_nodes_are_pruned_upwards),
    ],
    ids=lambda x: x.__name__,
)
def test_the_planted_fault_is_found(mutant, test, monkeypatch, make_host, tokens):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KVCacheError)):
        test(make_host, tokens)
