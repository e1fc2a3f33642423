"""Insert: what is taken, what is turned down, what is malformed. Each planted fault is a named mutant, and the test it is tied to
fails under it.
"""

import numpy as np
import pytest

from kvcache_core.contracts.results import Segment
from kvcache_core.errors import KVCacheError
from kvcache_radix import insertion as insertion_module
from kvcache_radix.insertion import Insertion

# tests


def segment(host, name, start, end):
    n = 1 if name == "recurrent" else (end - start) // host.page
    return Segment(start, end, host.alloc(name, n))


def test_nothing_beyond_the_usable_length_is_taken(make_host, tokens):
    """T3: no lock would cover it. Here the last state is at 8, so the pages of [8, 16) stay the caller's."""
    host = make_host("FR")
    pages, state = segment(host, "full", 0, 16), segment(host, "recurrent", 4, 8)
    result = host.cache.insert(tokens(range(16)), {"full": (pages,), "recurrent": (state,)})
    assert result.length == 8
    assert result.refused["full"].tolist() == pages.indices[2:].tolist()
    assert not len(result.duplicates["full"]) and not len(result.refused["recurrent"])
    assert host.cache.match_prefix(tokens(range(16))).matched_len == 8
    assert host.cache.size("full").request_owned == 2


def test_a_chunk_without_a_snapshot_is_refused_whole(make_host, tokens):
    host = make_host("FR")
    pages = segment(host, "full", 0, 16)
    result = host.cache.insert(tokens(range(16)), {"full": (pages,)})
    assert (result.length, result.refused["full"].tolist()) == (0, pages.indices.tolist())
    assert not host.tree.store.roots
    host.cache.check_integrity({"full": pages.indices, "recurrent": np.empty(0, np.int32)})


def test_values_that_do_not_reach_back_to_the_cached_part_are_refused(make_host, tokens):
    host = make_host("F")
    host.serve(tokens(range(8)))
    pages = segment(host, "full", 12, 16)
    result = host.cache.insert(tokens(range(16)), {"full": (pages,)})
    assert (result.length, result.refused["full"].tolist()) == (8, pages.indices.tolist())
    host.pools["full"].free(pages.indices)
    host.drain()


def test_duplicates_stay_the_callers_until_it_remapped(make_host, tokens):
    """FAULTS L7: two requests compute one prefix at the same time."""
    host = make_host("F")
    prompt = tokens(range(18))
    first, second = host.admit(prompt), host.admit(prompt)
    for request in (first, second):
        assert host.compute(request, 8)
    assert host.events["duplicates"] == 1
    assert first.pages["full"] == second.pages["full"]
    host.check()
    assert host.pools["full"].n_free == 62
    for request in (second, first):
        assert host.compute(request, 10)
        host.check()
    host.finish(first)
    host.finish(second)
    assert host.cache.size("full") == (60, 4, 0, 0, 0, 64)
    host.drain()


def test_a_window_that_was_lost_comes_back_for_a_part_of_a_node(make_host, tokens):
    """T20: the node is cut where the offered window begins, otherwise the window never comes back."""
    host = make_host("FS")
    prompt = tokens(range(16))
    host.cache.insert(prompt, {name: (segment(host, name, 0, 16),) for name in host.paged})
    assert host.cache.evict("swa", 4) == 4
    assert host.cache.match_prefix(prompt)[1:] == (0, 0, 16)
    pages, window = segment(host, "full", 0, 16), segment(host, "swa", 8, 16)
    result = host.cache.insert(prompt, {"full": (pages,), "swa": (window,)})
    assert (result.length, result.duplicates["full"].tolist()) == (16, pages.indices.tolist())
    host.pools["full"].free(pages.indices)
    assert host.cache.match_prefix(prompt).device_len == 16
    host.check()
    lock = host.cache.lock_ref(host.cache.match_prefix(prompt))
    assert lock.segment("swa").indices.tolist() == window.indices.tolist()
    host.cache.unlock_ref(lock)
    host.drain()


def test_a_state_is_adopted_in_the_middle_of_an_edge(make_host, tokens):
    host = make_host("FR")
    prompt = tokens(range(16))
    host.cache.insert(prompt, {"full": (segment(host, "full", 0, 16),), "recurrent": (segment(host, "recurrent", 12, 16),)})
    assert host.cache.match_prefix(prompt[:9])[1:] == (0, 0, 8)
    states = (segment(host, "recurrent", 4, 8), segment(host, "recurrent", 12, 16))
    result = host.cache.insert(prompt, {"recurrent": states})
    assert result.length == 16
    assert result.duplicates["recurrent"].tolist() == states[1].indices.tolist()
    host.pools["recurrent"].free(states[1].indices)
    assert host.cache.match_prefix(prompt[:9]).device_len == 8
    host.check()
    host.drain()


@pytest.mark.parametrize("components", ["F", "FS", "FSR"])
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("unknown component", {"mamba": (Segment(0, 4, np.array([9], np.int32)),)}),
        ("multiples of the page size", {"full": (Segment(2, 6, np.array([9], np.int32)),)}),
        ("multiples of the page size", {"full": (Segment(0, 20, np.arange(1, 6, dtype=np.int32)),)}),
        ("multiples of the page size", {"full": (Segment(8, 4, np.array([], np.int32)),)}),
        ("needs 2 indices and holds 1", {"full": (Segment(0, 8, np.array([9], np.int32)),)}),
        ("gap or overlap", {"full": (Segment(0, 4, np.array([9], np.int32)), Segment(8, 12, np.array([8], np.int32)))}),
        ("gap or overlap", {"full": (Segment(0, 8, np.array([9, 7], np.int32)), Segment(4, 8, np.array([8], np.int32)))}),
        ("int32", {"full": (Segment(0, 4, np.array([9])),)}),
        ("int32", {"full": (Segment(0, 4, np.array([[9]], np.int32)),)}),
        ("int32", {"full": (Segment(0, 4, [9]),)}),  # pyright: ignore[reportArgumentType]
        ("dummy page", {"full": (Segment(0, 8, np.array([9, 0], np.int32)),)}),
    ],
)
def test_malformed_values_raise_before_anything_is_taken(make_host, tokens, components, text, values):
    host = make_host(components)
    host.serve(tokens(range(9)), chunk=8)
    before = [host.cache.size(name) for name in host.geometries]
    with pytest.raises(ValueError, match=text):
        host.cache.insert(tokens(range(16)), values)
    assert [host.cache.size(name) for name in host.geometries] == before
    host.drain()


@pytest.mark.parametrize(
    ("text", "name", "segments"),
    [
        ("gap or overlap", "swa", ((0, 4, 1), (8, 12, 1))),
        ("states .* must ascend", "recurrent", ((0, 8, 1), (0, 8, 1))),
        ("needs 1 indices and holds 2", "recurrent", ((0, 8, 2),)),
        ("needs 1 indices", "recurrent", ((0, 0, 1),)),
    ],
)
def test_malformed_values_of_windows_and_states(make_host, tokens, text, name, segments):
    host = make_host("FSR")
    values = {name: tuple(Segment(start, end, np.arange(1, n + 1, dtype=np.int32)) for start, end, n in segments)}
    with pytest.raises(ValueError, match=text):
        host.cache.insert(tokens(range(16)), values)


# planted faults


def everything_offered_is_taken(monkeypatch):
    monkeypatch.setattr(insertion_module, "longest_usable", lambda geometries, ends, resident: ends[-1])


def duplicates_are_forgotten(monkeypatch):
    monkeypatch.setattr(Insertion, "_by_name", lambda self, data: self._nothing)


def partly_covered_nodes_are_not_cut(monkeypatch):
    real = Insertion._cut
    monkeypatch.setattr(Insertion, "_cut", lambda self, node, limit, offers: real(self, node, limit, [None] * len(offers)))


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (everything_offered_is_taken, test_nothing_beyond_the_usable_length_is_taken),
        (everything_offered_is_taken, test_a_chunk_without_a_snapshot_is_refused_whole),
        (duplicates_are_forgotten, test_duplicates_stay_the_callers_until_it_remapped),
        (partly_covered_nodes_are_not_cut, test_a_window_that_was_lost_comes_back_for_a_part_of_a_node),
        (partly_covered_nodes_are_not_cut, test_a_state_is_adopted_in_the_middle_of_an_edge),
    ],
    ids=lambda x: x.__name__,
)
def test_the_planted_fault_is_found(mutant, test, monkeypatch, make_host, tokens):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KVCacheError)):
        test(make_host, tokens)


@pytest.mark.parametrize("bounds", [(0.0, 8.0), (0, 8.0), ("0", "8")])
def test_bounds_that_are_no_integers_change_nothing(make_host, bounds):
    host = make_host("F", page=4)
    ids = np.arange(8, dtype=np.int32)
    with pytest.raises(TypeError):
        host.cache.insert(ids, {"full": (Segment(*bounds, np.array([1, 2], np.int32)),)})
    host.cache.check_integrity()
    assert host.cache.match_prefix(ids).matched_len == 0


def test_an_eviction_of_half_a_page_changes_nothing(make_host, tokens):
    host = make_host("F")
    host.cache.insert(tokens(range(16)), {"full": (segment(host, "full", 0, 16),)})
    with pytest.raises(TypeError):
        host.cache.evict("full", 1.5)
    host.cache.check_integrity()
    assert host.cache.evict("full", 100) == 4
