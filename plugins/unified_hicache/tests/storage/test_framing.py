"""Framed parts: what differs stays different, whatever the parts hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage import framing

# Few letters, among them those that lengths are written with, so that pieces collide whenever they can.
PARTS = st.lists(st.binary(max_size=6) | st.text(alphabet="\0\1\2", max_size=6).map(str.encode), max_size=5).map(tuple)


def read(framed):
    """The parts again: what can be read back cannot be ambiguous."""
    n, at = int.from_bytes(framed[:4], "little"), 4
    parts = []
    for _ in range(n):
        length = int.from_bytes(framed[at : at + 4], "little")
        parts.append(framed[at + 4 : at + 4 + length])
        at += 4 + length
    assert at == len(framed)
    return tuple(parts)


@given(PARTS)
def test_parts_can_be_read_back(parts):
    assert read(framing.frame(*parts)) == parts


@given(PARTS, PARTS)
def test_frames_are_equal_only_for_equal_parts(a, b):
    assert (framing.frame(*a) == framing.frame(*b)) == (a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((b"a", b"bc"), (b"ab", b"c")),
        ((), (b"",)),
        ((b"",), (b"", b"")),
        ((b"a",), (b"a", b"")),
        ((b"a\0",), (b"a",)),
        ((b"a", b""), (b"", b"a")),
    ],
)
def test_parts_are_framed_and_not_joined(a, b):
    assert framing.frame(*a) != framing.frame(*b)


def test_no_frame_is_the_beginning_of_another():
    """So that framed values may be joined."""
    assert not framing.frame(b"a", b"b").startswith(framing.frame(b"a"))
    assert framing.frame(framing.frame(b"a"), b"b") != framing.frame(b"a", framing.frame(b"b"))


def test_the_layout_is_the_documented_one():
    assert framing.frame(b"ab", b"") == bytes.fromhex("02000000 02000000 6162 00000000")


def joined_parts_differ():
    test_parts_are_framed_and_not_joined((b"a", b"bc"), (b"ab", b"c"))


def empty_parts_have_a_place():
    test_parts_are_framed_and_not_joined((b"a", b""), (b"", b"a"))


class TestFaultsOfFraming(PlantedFaultTests):
    faults = (
        Fault("joined", joined_parts_differ, Replacement(framing, "frame", '(len(part).to_bytes(4, "little"), part)', "(part,)")),
        Fault(
            "empty parts left out",
            empty_parts_have_a_place,
            Replacement(framing, "frame", "for part in parts:", "for part in filter(None, parts):"),
        ),
        Fault(
            "count left out",
            test_no_frame_is_the_beginning_of_another,
            Replacement(framing, "frame", '[len(parts).to_bytes(4, "little")]', "[]"),
        ),
    )
