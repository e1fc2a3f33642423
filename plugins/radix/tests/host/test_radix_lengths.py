"""FAULTS L4: every length around a page boundary, for every page size; edges cut by the cap; long prompts. Each planted fault
names the test that fails under it.
"""

import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.results import full
from kvcache_core.errors import IntegrityError
from kvcache_radix import tree as tree_module
from kvcache_radix.insertion import Insertion
from kvcache_radix.tree import RadixTree

PAGES = [1, 2, 16, 64, 256]


@pytest.mark.parametrize("page", PAGES)
def test_lengths_around_a_page(make_host, page):
    host = make_host("F", page=page, total=40)
    ids = np.arange(3 * page + 2, dtype=np.int32)
    lengths = sorted({0, 1, page - 1, page, page + 1, 2 * page - 1, 2 * page, 2 * page + 1, 3 * page + 2})
    assert host.cache.insert(ids[:0], {}).length == 0
    host.check()
    for cached in lengths[1:]:
        host.serve(ids[:cached])
        host.check()
        # All of them before the first lock, which cuts edges.
        matches = {length: host.cache.match_prefix(ids[:length]) for length in lengths}
        for length, match in matches.items():
            expected = min(cached, length) // page * page
            assert match[1:] == (expected, expected, expected)
            lock = host.cache.lock_ref(match)
            assert len(lock.segment("full").indices) == expected // page
            host.cache.unlock_ref(lock)
        assert host.cache.reset()
    host.drain()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("cap", [1, 2, None])
def test_a_branch_at_every_position(make_host, page, cap):
    """A difference anywhere inside a page costs that page; one in the first page of an edge leaves the edge alone."""
    ids = np.arange(4 * page, dtype=np.int32)
    for at in sorted({0, 1, page - 1, page, page + 1, 2 * page, 4 * page - 1}):
        host = make_host("F", page=page, total=40, edge_cap=cap)
        host.serve(ids)
        other = ids.copy()
        other[at % len(ids)] += 1_000_000
        shared = at % len(ids) // page * page
        assert host.cache.match_prefix(other).matched_len == shared
        host.serve(other)
        host.check()
        for prompt in (ids, other):
            assert host.cache.match_prefix(prompt).device_len == len(ids)
        if shared == 0:
            assert host.events["splits"] == 0
        host.drain()


def test_edges_are_capped_and_rows_are_whole(make_host, tokens):
    host = make_host("F", page=2, total=64, edge_cap=3)
    indices = host.alloc("full", 20)
    host.cache.insert(tokens(range(40)), full(indices, 2))
    host.check()
    match = host.cache.match_prefix(tokens(range(40)))
    assert len(match.handle.key) == 2 * 2 * 4, "20 pages are 6 edges of 3 and one of 2"
    for length in range(0, 42, 2):
        lock = host.cache.lock_ref(match, length)
        segment = lock.segment("full")
        assert (segment.start, segment.end, segment.indices.tolist()) == (0, length, indices[: length // 2].tolist())
        host.cache.unlock_ref(lock)
    host.drain()


def test_a_prompt_longer_than_the_edge_cap(make_host):
    host = make_host("F", page=16, total=9000)
    ids = np.arange(131_072, dtype=np.int32) % 50_021
    indices = host.alloc("full", 8192)
    assert host.cache.insert(ids, full(indices, 16)).length == 131_072
    lock = host.cache.lock_ref(host.cache.match_prefix(ids))
    assert np.array_equal(lock.segment("full").indices, indices)
    host.cache.unlock_ref(lock)
    host.check()
    host.drain()


@pytest.mark.parametrize(
    ("page", "cap", "geometries", "text"),
    [
        (0, None, "F", "at least 1"),
        (4, 0, "F", "at least 1"),
        (4, None, "", "different names"),
        (4, None, "FF", "different names"),
        (1, None, "S", "tokens that nobody computed"),
    ],
)
def test_a_tree_that_cannot_work_is_refused(make_parts, page, cap, geometries, text):
    made = make_parts("FS", 4, window=1).geometries
    with pytest.raises(ValueError, match=text):
        RadixTree(page, [made["full" if letter == "F" else "swa"] for letter in geometries], edge_cap=cap)


def test_unknown_places_are_named(make_host):
    host = make_host("F")
    for call in (host.cache.size, lambda name, tier="device": host.cache.evict(name, 1, tier)):
        with pytest.raises(KeyError, match="swa"):
            call("swa")
        with pytest.raises(KeyError, match="host"):
            call("full", "host")


def test_integrity_sees_an_index_with_two_owners(make_host, tokens):
    host = make_host("F")
    indices = host.alloc("full", 3)
    host.cache.insert(tokens(range(8)), full(indices[:2], 4))
    host.cache.check_integrity({"full": indices[2:]})
    with pytest.raises(IntegrityError, match="two owners"):
        host.cache.check_integrity({"full": indices[:1]})
    with pytest.raises(IntegrityError, match="requests own 0"):
        host.cache.check_integrity({"full": indices[:0]})


# planted faults


def lengths(make_host):
    test_lengths_around_a_page(make_host, 16)


def branches(make_host):
    test_a_branch_at_every_position(make_host, 16, None)


class TestFaultsOfLengths(PlantedFaultTests):
    faults = (
        Fault(
            "L4: a page of which only the beginning was asked for is a hit",
            lengths,
            Replacement(RadixTree, "_find", "len(view) - len(view) % page", "len(view)"),
        ),
        Fault(
            "L4: exactly a page counts as less",
            lengths,
            Replacement(RadixTree, "_find", "while at < limit and", "while at + page < limit and"),
        ),
        Fault(
            "L4: a page is shared up to the token that differs",
            branches,
            Replacement(tree_module, "_common_length", "same - same % page", "same"),
        ),
        Fault(
            "L4: the page that differs is shared",
            branches,
            Replacement(tree_module, "_common_length", "same - same % page", "same - same % page + page"),
        ),
        Fault(
            "L4: edges are not capped",
            test_edges_are_capped_and_rows_are_whole,
            Replacement(Insertion, "insert_closed", "min(length, at + self._edge_cap)", "length"),
        ),
    )
