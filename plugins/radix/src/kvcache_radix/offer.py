"""What a caller offers to `insert`, validated and copied, before anything is taken.

It knows geometries and page sizes; it does not know the tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from types import MappingProxyType

import numpy as np

from kvcache_core.contracts.results import Segment, Values
from kvcache_core.contracts.tokens import INT32
from kvcache_radix.geometry import Geometry
from kvcache_radix.node import INDEX_BYTES

_NO_STATES: Mapping[int, bytes] = MappingProxyType({})


class Offer:
    """One component's values. Pages: `data` holds the indices of [start, end) as int32 bytes. `at_node_end`: `states` maps
    positions, ascending, to one index each, and `start` and `end` are the first and the last of them. `holes`: stretches within
    [start, end) for which nothing is offered, where there may be any; their bytes in `data` mean nothing."""

    __slots__ = ("data", "end", "holes", "page_size", "start", "states")

    def __init__(
        self,
        start: int,
        end: int,
        data: bytes,
        states: Mapping[int, bytes],
        page_size: int,
        holes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.start = start
        self.end = end
        self.data = data
        self.states = states
        self.page_size = page_size
        self.holes = holes

    @property
    def cuts(self) -> Iterable[int]:
        """The positions between which it offers all or nothing."""
        if self.states:
            return self.states.keys()
        if not self.holes:
            return (self.start, self.end)
        return (self.start, self.end, *(at for hole in self.holes for at in hole))

    def covers(self, start: int, end: int) -> bool:
        """Whether pages are offered for all of [start, end)."""
        return self.start <= start and end <= self.end and not any(a < end and start < b for a, b in self.holes)

    def pieces(self, start: int, end: int) -> bytes:
        """`slice` without what lies in a hole."""
        if not self.holes:
            return self.slice(start, end)
        bounds = [start, *(min(max(at, start), end) for hole in self.holes for at in hole), end]
        return b"".join([self.slice(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=True)])

    def slice(self, start: int, end: int) -> bytes:
        """The offered indices of [start, end), clipped to what is offered; those of states with start < position <= end."""
        if self.states:
            return b"".join([data for at, data in self.states.items() if start < at <= end])
        if start <= self.start:
            if end >= self.end:
                return self.data
            start = self.start
        if end > self.end:
            end = self.end
        if start >= end:
            return b""
        page, base = self.page_size, self.start
        return self.data[(start - base) // page * INDEX_BYTES : (end - base) // page * INDEX_BYTES]


def read_offers(
    values: Values,
    components: Mapping[str, int],
    geometries: Sequence[Geometry],
    page_size: int,
    length: int,
    *,
    holes: bool = False,
) -> list[Offer | None]:
    """By component number; None where nothing is offered. With `holes` the segments of a component need not touch.

    Raises ValueError for malformed values.
    """
    offers: list[Offer | None] = [None] * len(geometries)
    for name, segments in values.items():
        c = components.get(name)
        if c is None:
            raise ValueError(f"values for unknown component {name!r}; this cache has: {', '.join(components)}")
        at_node_end = geometries[c].at_node_end
        if len(segments) == 1:  # nearly every insert brings just this, and every insert comes here
            segment = segments[0]
            data = _read_segment(name, segment, at_node_end, page_size, length)
            if at_node_end:
                offers[c] = Offer(segment.end, segment.end, b"", {segment.end: data}, page_size)
            elif data:
                offers[c] = Offer(segment.start, segment.end, data, _NO_STATES, page_size)
            continue
        chunks: list[bytes] = []
        ends: list[int] = []
        gaps: list[tuple[int, int]] = []
        last = -1
        for segment in segments:
            chunk = _read_segment(name, segment, at_node_end, page_size, length)
            if at_node_end:
                if segment.end <= last:
                    raise ValueError(f"states of {name!r} must ascend; position {segment.end} follows {last}")
            elif holes and segment.start > last >= 0:
                gaps.append((last, segment.start))
                chunk = bytes((segment.start - last) // page_size * INDEX_BYTES) + chunk
            elif segment.start != last and last >= 0:
                raise ValueError(f"gap or overlap in {name!r}: a segment ends at {last}, the next begins at {segment.start}")
            chunks.append(chunk)
            last = segment.end
            ends.append(last)
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if not data:
            continue
        if at_node_end:
            offers[c] = Offer(ends[0], last, b"", dict(zip(ends, chunks, strict=True)), page_size)
        else:
            offers[c] = Offer(segments[0].start, last, data, _NO_STATES, page_size, gaps)
    return offers


def _read_segment(name: str, segment: Segment, at_node_end: bool, page_size: int, length: int) -> bytes:
    start, end, indices = index(segment.start), index(segment.end), segment.indices
    if start % page_size or end % page_size or not 0 <= start <= end <= length:
        raise ValueError(
            f"segment [{start}, {end}) of {name!r} must lie in [0, {length}), "
            f"begin and end at multiples of the page size {page_size}"
        )
    if type(indices) is not np.ndarray or (indices.dtype is not INT32 and indices.dtype != INT32) or indices.ndim != 1:
        raise ValueError(f"indices of {name!r} must be a one-dimensional numpy int32 array, not {indices!r}")
    expected = 1 if at_node_end else (end - start) // page_size
    if len(indices) != expected or (at_node_end and not end):
        raise ValueError(f"segment [{start}, {end}) of {name!r} needs {expected} indices and holds {len(indices)}")
    if expected and indices.item(0 if expected == 1 else indices.argmin()) < 1:
        raise ValueError(f"segment [{start}, {end}) of {name!r} holds {indices.min()}; 0 is the dummy page, nobody can own it")
    return indices.tobytes()
