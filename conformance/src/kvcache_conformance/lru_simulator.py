"""The eviction order of a cache for full attention, as a plain list of pages would have it.

Least recently used first, pages without a longer neighbour only; the pages of one use count from the last to the first. Every
eviction looks at every page, so there is no heap, no tree and no lazy entry to get wrong.
"""

from collections.abc import Collection
from typing import final

from kvcache_conformance.reference_model import TOKEN_BYTES, PageKey
from kvcache_core.contracts.tokens import ExtraKey


@final
class LruSimulator:
    """`page_size` in tokens."""

    def __init__(self, page_size: int) -> None:
        self._page_bytes = page_size * TOKEN_BYTES
        self._used: dict[PageKey, int] = {}
        self._clock = 0

    def use(self, extra_key: ExtraKey, tokens: bytes, length: int) -> None:
        """A lock or an insert of `length` tokens: each of its pages is known from now on and recent."""
        for end in range(length * TOKEN_BYTES, 0, -self._page_bytes):
            self._clock += 1
            self._used[extra_key, tokens[:end]] = self._clock

    def evict(self, n: int, locked: Collection[PageKey]) -> list[PageKey]:
        """Forget up to `n` pages, and say which, in order."""
        gone: list[PageKey] = []
        while len(gone) < n:
            parents = {(key, prefix[: -self._page_bytes]) for key, prefix in self._used}
            leaves = [page for page in self._used if page not in parents and page not in locked]
            if not leaves:
                break
            oldest = min(leaves, key=self._used.__getitem__)
            del self._used[oldest]
            gone.append(oldest)
        return gone

    def clear(self) -> None:
        self._used.clear()
