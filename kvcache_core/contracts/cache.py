"""The contract of a prefix cache. A host speaks to this class alone and never asks which cache it is.

Idea: a prefix of length L is usable if and only if, for every component, every node on its path that ends after
`first_needed(L)` holds that component's data. What to match, lock, load and fetch follows from it.

Ownership: every index has exactly one owner: a free list, the cache, a transfer in flight, or a request. `insert` moves
(offered - duplicates - refused) to the cache; nothing else moves. The cache never frees a caller's index.

All methods are called on the thread that owns the engine.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.locks import Lock, Refused, Ticket
from kvcache_core.contracts.results import Indices, InsertResult, MatchResult, PersistReport, SizeInfo, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds

Tier = Literal["device", "host"]


class BasePrefixCache(ABC):
    """A prefix cache over the device pools of one data-parallel rank.

    `load`, `prefetch`, `poll`, `pause`, `persist` and `close` have defaults for a cache without tiers; a cache with tiers
    replaces them.
    """

    def __init__(self) -> None:
        self.counters = CacheCounters()

    @abstractmethod
    def match_prefix(self, ids: TokenIds, extra_key: ExtraKey = ()) -> MatchResult:
        """Find the longest known prefix of `ids`. Changes nothing: no touch, no split, no allocation; safe for probing.

        Raises:
            TypeError, ValueError: `ids` as `tokens.as_token_ids` refuses them, `extra_key` as `tokens.check_extra_key` does; of
                every call that takes them. Other bytes in a key would find a wrong page.
        """

    @abstractmethod
    def lock_ref(self, match: MatchResult, length: int | None = None, *, host: bool = False) -> Lock | None:
        """Hold `match` up to `length` tokens (default: `device_len`, or `host_len` with `host`) and make it recent.

        Returns None when the match went stale since; match again then. Length 0 is always lockable.

        Raises:
            ValueError: `length` cannot be locked in this match: not a page boundary, negative, or beyond what it found.
        """

    @abstractmethod
    def unlock_ref(self, lock: Lock, component: str | None = None) -> None:
        """Release `lock`, or early the part of one component that is not prefix closed (a window left behind).

        Raises:
            LockError: released before, or made by another cache; of one component, released early before.
            KeyError: an unknown component.
        """

    @abstractmethod
    def insert(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        """Offer the data of `ids` (page aligned). What the cache cannot use is refused in the result, not raised.

        A cache with tiers may start copies, and for their room drop what is least recent in host memory. Device data of its own
        that is of no use without it is freed then; never a caller's index, never anything that a lock covers. A match made before
        may be stale afterwards. `poll`, `prefetch`, `load` and `persist` may free in the same way, with the same consequence.

        Raises:
            ValueError: malformed values: misaligned, an unknown component, a gap where none may be. Nothing was taken.
            TypeError, ValueError: ids or extra key, as `match_prefix`.
        """

    @abstractmethod
    def evict(self, component: str, n: int, tier: Tier = "device") -> int:
        """Free at least `n` indices of `component` if unlocked data allows it; returns how many were freed. Raises KeyError as
        `size`."""

    @abstractmethod
    def size(self, component: str, tier: Tier = "device") -> SizeInfo:
        """Account for every index of a component and tier. Raises KeyError for an unknown component or an absent tier."""

    @abstractmethod
    def reset(self) -> bool:
        """Forget everything. False, and nothing changed, while a `Lock` lives. Transfers in flight stay safe."""

    @abstractmethod
    def check_integrity(self, request_owned: Mapping[str, Indices] | None = None) -> None:
        """Verify every invariant; with `request_owned` also that each index of the pools has exactly one owner.

        Raises:
            IntegrityError: names the invariant and what was found.
        """

    def load(self, match: MatchResult) -> Ticket | Refused:
        """Bring the host part of `match` to the device (L2 -> L1), the longest usable length that fits."""
        return Refused.NO_TIER

    def prefetch(self, ids: TokenIds, extra_key: ExtraKey = ()) -> Ticket | Refused:
        """Bring what storage has of `ids` to the host (L3 -> L2). Holds no lock."""
        return Refused.NO_TIER

    def poll(self) -> int:
        """Commit finished transfers; called at the start of every step, also idle ones. Returns the number of commits."""
        return 0

    def pause(self, seconds: float) -> None:
        """Leave the processor to what is under way, for a host that has nothing to compute: until there may be something for
        `poll` to do, where the cache is told, and else for `seconds`. Milliseconds at most: another request may come."""
        time.sleep(seconds)

    def persist(self, deadline: float) -> PersistReport:
        """Send what only L1 or L2 holds to storage, for at most `deadline` seconds."""
        return PersistReport(message="this cache has no storage tier, nothing was written")

    def close(self) -> None:
        """End every thread and transfer. Idempotent; the cache is not used afterwards."""
