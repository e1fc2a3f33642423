"""Malformed offers are raised before anything is taken."""

import numpy as np
import pytest

from kvcache_core.contracts.results import Segment, full
from kvcache_core.contracts.values import check_values


def pages(*numbers):
    return np.array(numbers, np.int32)


def test_the_common_case():
    values = full(pages(3, 4), page_size=16, start=32)
    assert [(s.start, s.end) for s in values["full"]] == [(32, 64)]
    check_values(64, values, 16, {"full"})
    check_values(64, {"full": ()}, 16, {"full"})
    check_values(64, {"state": (Segment(48, 64, pages(9)),)}, 16, {"state"})


@pytest.mark.parametrize(
    ("n", "segments", "text"),
    [
        (63, (), "no multiple"),
        (64, (Segment(8, 64, pages(1, 2, 3, 4)),), "aligned"),
        (64, (Segment(0, 24, pages(1, 2)),), "aligned"),
        (64, (Segment(0, 80, pages(1, 2, 3, 4, 5)),), "ends after"),
        (64, (Segment(32, 16, pages(1)),), "reversed"),
        (64, (Segment(0, 32, pages(1, 2)), Segment(16, 48, pages(3, 4))), "overlaps"),
        (64, (Segment(0, 64, pages(1, 2, 3)),), "covers 4 pages but brings 3"),
        (64, (Segment(0, 64, np.array([1, 2, 3, 4])),), "int32"),
        (64, (Segment(0, 32, pages(1, 0)),), "dummy"),
        (64, (Segment(0, 32, pages(1, -3)),), "dummy"),
    ],
)
def test_malformed(n, segments, text):
    with pytest.raises(ValueError, match=text):
        check_values(n, {"full": segments}, 16, {"full"})


@pytest.mark.parametrize(
    ("segments", "states", "text"),
    [
        ((Segment(0, 16, pages(1)), Segment(32, 48, pages(2))), (), "leaves a gap"),
        ((Segment(0, 64, pages(1)),), (), "needs 4 indices and brings 1"),
        ((Segment(0, 32, pages(1, 2)),), ("x",), "needs 1 indices and brings 2"),
        ((Segment(0, 0, pages(1)),), ("x",), "no state before"),
    ],
)
def test_malformed_for_the_kind_of_component(segments, states, text):
    with pytest.raises(ValueError, match=text):
        check_values(64, {"x": segments}, 16, {"x"}, states)


def test_a_gap_is_fine_between_states_and_in_front_of_pages():
    values = {"x": (Segment(0, 16, pages(1)), Segment(32, 48, pages(2))), "y": (Segment(32, 64, pages(3, 4)),)}
    check_values(64, values, 16, {"x", "y"}, {"x"})


def test_unknown_component_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'window'.*full, state"):
        check_values(16, {"window": ()}, 16, {"full", "state"})
