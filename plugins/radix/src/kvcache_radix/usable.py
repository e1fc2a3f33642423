"""The longest usable prefix: the one rule from which matching, locking and inserting follow.

A prefix of length L is usable if, for every component, everything that ends after `first_needed(L)` is resident; a component
`at_node_end` needs its state exactly at L. Length 0 is always usable. It does not know nodes: callers describe the path.
"""

from collections.abc import Sequence

from kvcache_radix.geometry import Geometry


def longest_usable(geometries: Sequence[Geometry], ends: Sequence[int], resident: Sequence[Sequence[bool]]) -> int:
    """The path is cut into pieces that end at `ends`, ascending; `resident[c][i]` says whether piece i holds component c (the
    state at its end, where `at_node_end`). Only ends need to be tried: `first_needed` never decreases and is below every
    length, so if a piece's end is not usable, no position inside the piece is.
    """
    last = len(ends) - 1
    for geometry, has in zip(geometries, resident, strict=True):
        if geometry.prefix_closed and not all(has):
            last = min(last, has.index(False) - 1)
    while last >= 0:
        failed = last + 1
        for geometry, has in zip(geometries, resident, strict=True):
            if geometry.prefix_closed:
                continue
            failed = min(failed, _first_failure(geometry, has, ends, last))
        if failed > last:
            return ends[last]
        last = failed - 1
    return 0


def _first_failure(geometry: Geometry, has: Sequence[bool], ends: Sequence[int], last: int) -> int:
    """The piece nearest the end that `ends[last]` needs and lacks, or last + 1. Every longer prefix down to it needs it too."""
    if geometry.at_node_end:
        return last + 1 if has[last] else last
    need = geometry.first_needed(ends[last])
    i = last
    while i >= 0 and ends[i] > need:
        if not has[i]:
            return i
        i -= 1
    return last + 1
