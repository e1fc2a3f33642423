"""The plain values that cross the boundary between a host and a cache. They hold no behaviour and keep nothing alive.

All lengths and positions count tokens. Indices are int32 page numbers of one component's device pool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int32]
"""int32, one per page, or exactly one for a component that keeps one unit at a node's end."""

NO_INDICES: Indices = np.empty(0, dtype=np.int32)
NO_INDICES.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """`indices` hold tokens [start, end) of one prefix. `start` and `end` are page aligned; for a component with one unit at
    a node's end (`at_node_end`), `end` is the position of the state and there is exactly one index."""

    start: int
    end: int
    indices: Indices


Values = Mapping[str, Sequence[Segment]]
"""What a caller owns and offers to `insert`, by component name; the segments of a component in order, without overlap."""


def full(indices: Indices, page_size: int, start: int = 0) -> Values:
    """The common case of `Values`: full-attention pages that hold tokens from `start` on, one index a page."""
    return {"full": (Segment(start, start + len(indices) * page_size, indices),)}


class MatchResult(NamedTuple):
    """The answer of `match_prefix`: a claim about now, without a lock. It survives splits; `lock_ref` tells if it went stale."""

    handle: object
    """Opaque to its holder; only the cache that made it reads it."""
    device_len: int
    """Longest usable prefix whose data is in device memory."""
    host_len: int
    """Longest usable prefix whose data is in device or host memory; at least `device_len`."""
    matched_len: int
    """Longest prefix the cache knows at all, usable or not; at least `host_len`."""


class InsertResult(NamedTuple):
    """What became of offered `Values`. The cache now owns exactly offered - duplicates - refused."""

    length: int
    """Up to here the prefix is usable from device memory; `match_prefix(ids[:length]).device_len == length`."""
    duplicates: Mapping[str, Indices]
    """Offered indices whose place was taken. Still the caller's: remap the page table first, then free them."""
    refused: Mapping[str, Indices]
    """Offered indices the cache has no use for. Still the caller's, and still valid in its page table."""


class SizeInfo(NamedTuple):
    """Where every index of one component and tier is. The first five sum to `total`; the dummy page 0 is counted nowhere."""

    free: int
    evictable: int
    protected: int
    in_flight: int
    request_owned: int
    total: int


@dataclass(frozen=True, slots=True)
class PersistReport:
    """What `persist` did with the data that only L1 or L2 held."""

    stored: int = 0
    """Pages the storage confirmed."""
    dropped: Mapping[str, int] | None = None
    """Pages given up, by reason."""
    remaining: int = 0
    """Pages not reached before the deadline."""
    message: str = ""
    """One sentence for the operator, for instance that the configuration never writes to storage."""
