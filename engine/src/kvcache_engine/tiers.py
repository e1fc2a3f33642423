"""What a cache's tiers hold and what moved between them, read through the contract alone: `size` and the counters.

It asks no cache for its type: a tier that a cache does not have is one that `size` refuses.
"""

from collections.abc import Mapping
from typing import TypedDict

from kvcache_core.contracts.cache import BasePrefixCache, Tier
from kvcache_core.contracts.counters import CacheCounters

TIERS: tuple[Tier, ...] = ("device", "host")
DIRECTIONS = ("d2h", "h2d", "store", "fetch")


class TierSize(TypedDict):
    """One tier of a cache, all components together."""

    pages: int
    """Pages, and recurrent states, that it can hold."""
    units: dict[str, int]
    """The same by component."""
    bytes: int
    """Bytes of so many pages, over all layers; replicas on several devices are counted once."""


class Movement(TypedDict):
    """What was copied in one direction: `d2h` (L1 to L2), `h2d` (L2 to L1), `store` (L2 to L3) or `fetch` (L3 to L2)."""

    bytes: int
    """Bytes of the copies that were committed."""
    seconds: float
    """Seconds from asking for a copy to its commit, summed over the copies: waiting for the dispatch and for the step that
    notices is part of it, and copies that overlap count each."""
    bytes_per_s: float | None
    """The one over the other, so a lower bound of the memory's speed; null before anything was copied."""


def tier_sizes(cache: BasePrefixCache, page_bytes: Mapping[str, int]) -> dict[str, TierSize]:
    """By tier, only those that the cache has. `page_bytes`: bytes of a page of each component."""
    sizes: dict[str, TierSize] = {}
    for tier in TIERS:
        try:
            totals = {name: cache.size(name, tier).total for name in page_bytes}
        except KeyError:
            continue
        sizes[tier] = {
            "pages": sum(totals.values()),
            "units": totals,
            "bytes": sum(total * page_bytes[name] for name, total in totals.items()),
        }
    return sizes


def movements(counters: CacheCounters) -> dict[str, Movement]:
    """By direction."""
    moved: dict[str, Movement] = {}
    for direction in DIRECTIONS:
        nbytes, seconds = counters.bytes_moved[direction], float(counters.seconds_moving[direction])
        moved[direction] = {"bytes": nbytes, "seconds": seconds, "bytes_per_s": nbytes / seconds if nbytes and seconds else None}
    return moved
