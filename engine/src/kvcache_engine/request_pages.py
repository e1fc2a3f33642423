"""The page table of one request, for every component: which pages hold its tokens, and which of them are still its own.

It allocates nothing and frees nothing; it only remembers. Pages below `cached` (in pages, from the start) belong to the cache,
the rest to the request.
"""

from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import NO_INDICES, Indices, Segment, Values


@final
class RequestPages:
    """Page tables by component name. `page_size` in tokens."""

    __slots__ = ("_cached", "_page_size", "_tables")

    def __init__(self, components: Iterable[str], page_size: int) -> None:
        self._page_size = page_size
        self._tables: dict[str, Indices] = dict.fromkeys(components, NO_INDICES)
        self._cached = 0

    @property
    def components(self) -> Iterable[str]:
        return self._tables.keys()

    @property
    def capacity(self) -> int:
        """Tokens that the pages of every component can hold."""
        return min(len(table) for table in self._tables.values()) * self._page_size

    @property
    def cached_len(self) -> int:
        """Tokens at the start whose pages belong to the cache."""
        return self._cached * self._page_size

    def table(self, component: str) -> Indices:
        """Page numbers by page ordinal. A view; the caller must not write to it."""
        return self._tables[component]

    def missing(self, component: str, n_tokens: int) -> int:
        """Pages that this component lacks to hold `n_tokens`."""
        return max(0, -(-n_tokens // self._page_size) - len(self._tables[component]))

    def extend(self, component: str, indices: Indices) -> None:
        """Take over freshly allocated pages, after the ones already here."""
        self._tables[component] = np.concatenate([self._tables[component], indices])

    def owned(self, component: str) -> Indices:
        """The pages that the request must give back or offer."""
        return self._tables[component][self._cached :]

    def values(self, end: int) -> Values:
        """Offer the request's own pages up to `end` tokens (page aligned) to `insert`."""
        start, stop = self._cached, end // self._page_size
        return {
            name: (Segment(self.cached_len, end, table[start:stop].copy()),) if stop > start else ()
            for name, table in self._tables.items()
        }

    def begin(self, lock: Lock) -> None:
        """Put the locked prefix in front of pages that were allocated for what follows it. The request holds no prefix yet."""
        assert self._cached == 0
        for name, table in self._tables.items():
            segment = lock.segment(name)
            self._tables[name] = np.concatenate([self._window_hole(segment), segment.indices, table])
        self._cached = lock.length // self._page_size

    def remap(self, lock: Lock) -> None:
        """Point at the cache's pages below `lock.length`; from now on they are the cache's. Call before duplicates are freed."""
        for name, table in self._tables.items():
            segment = lock.segment(name)
            table = table.copy()
            table[segment.start // self._page_size : segment.end // self._page_size] = segment.indices
            self._tables[name] = table
        self._cached = lock.length // self._page_size

    def clear(self) -> Mapping[str, Indices]:
        """Forget everything and return what the request still owned, by component."""
        owned = {name: self.owned(name) for name in self._tables}
        self._tables = dict.fromkeys(self._tables, NO_INDICES)
        self._cached = 0
        return owned

    def _window_hole(self, segment: Segment) -> Indices:
        # A component may hold only the end of the prefix; the rest is never read and points at the dummy page.
        return np.zeros(segment.start // self._page_size, np.int32)
