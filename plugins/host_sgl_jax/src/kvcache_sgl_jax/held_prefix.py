"""What sgl-jax carries around as a "node": a matched prefix of one cache and the receipts taken on it.

sgl-jax counts references on a node; the contract gives a receipt for each. Its scheduler takes at most a few on one node and
never asks which one it gives back, so they are a stack. It does not know requests.
"""

from typing import final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import Indices, MatchResult
from kvcache_core.contracts.tokens import ExtraKey
from kvcache_core.errors import IntegrityError, LockError


@final
class HeldPrefix:
    """`ids` and `extra_key` are what was matched. Compared by identity, as the host's nodes are."""

    __slots__ = ("_cache", "_locks", "extra_key", "ids", "match", "rank")

    def __init__(
        self, cache: BasePrefixCache, rank: int, ids: npt.NDArray[np.int32], extra_key: ExtraKey, match: MatchResult
    ) -> None:
        self._cache = cache
        self._locks: list[Lock] = []
        self.rank = rank
        self.ids = ids
        self.extra_key = extra_key
        self.match = match

    @property
    def length(self) -> int:
        """Tokens held while it is locked; 0 otherwise."""
        return self._locks[-1].length if self._locks else 0

    @property
    def locked(self) -> bool:
        return bool(self._locks)

    def lock(self) -> None:
        """Take one more receipt on the device part.

        Raises IntegrityError when it is not there any more: sgl-jax holds what it matched before anything may evict, and its page
        table would name pages of somebody else.
        """
        lock = self._cache.lock_ref(self.match)
        if lock is None:
            raise IntegrityError("a prefix was evicted between its match and its lock; sgl-jax never allows that")
        self._locks.append(lock)

    def pages(self) -> Indices:
        """The pages of the locked part. Raises LockError when it is not locked."""
        if not self._locks:
            raise LockError("the pages of a prefix are named only while it is locked")
        return self._locks[-1].segment("full").indices

    def unlock(self) -> None:
        """Give one receipt back. Raises LockError when none is left."""
        if not self._locks:
            raise LockError("sgl-jax released a prefix more often than it locked it")
        self._cache.unlock_ref(self._locks.pop())
