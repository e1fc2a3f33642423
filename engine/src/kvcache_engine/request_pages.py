"""The page table of one request, for every component with pages: which pages hold its tokens, and which of them are its own.

It allocates nothing and frees nothing; it only remembers. Pages below `cached` (in pages, from the start) belong to the cache,
the rest to the request, except those behind a window, which are nobody's any more: their entries are 0, the dummy page.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import numpy as np

from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import NO_INDICES, Indices, Segment, Values
from kvcache_engine.component import Component


@final
class RequestPages:
    """Page tables by component name. `page_size` in tokens."""

    __slots__ = ("_behind", "_cached", "_components", "_page_size", "_tables")

    def __init__(self, components: Sequence[Component], page_size: int) -> None:
        self._page_size = page_size
        self._components = {component.name: component for component in components}
        self._tables: dict[str, Indices] = dict.fromkeys(self._components, NO_INDICES)
        self._behind = dict.fromkeys(self._components, 0)  # in pages, from the start: given back, they lie behind the window
        self._cached = 0

    @property
    def components(self) -> Iterable[str]:
        return self._tables.keys()

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
        return self._tables[component][self._first_own(component) :]

    def values(self, end: int) -> Values:
        """Offer the request's own pages up to `end` tokens (page aligned) to `insert`."""
        stop = end // self._page_size
        values: dict[str, Sequence[Segment]] = {}
        for name, table in self._tables.items():
            start = self._first_own(name)
            values[name] = (Segment(start * self._page_size, end, table[start:stop].copy()),) if stop > start else ()
        return values

    def begin(self, lock: Lock) -> None:
        """Put the locked prefix in front of pages that were allocated for what follows it. The request holds no prefix yet."""
        assert self._cached == 0
        for name, table in self._tables.items():
            segment = lock.segment(name)
            # A window holds only the end of the prefix; the rest is never read.
            hole = np.zeros(segment.start // self._page_size, np.int32)
            self._tables[name] = np.concatenate([hole, segment.indices, table])
        self._cached = lock.length // self._page_size

    def remap(self, lock: Lock) -> None:
        """Point at the cache's pages below `lock.length`; from now on they are the cache's. Call before duplicates are freed."""
        for name, table in self._tables.items():
            segment = lock.segment(name)
            table = table.copy()
            start = segment.start // self._page_size
            table[:start] = 0  # no longer locked, so anybody may write there
            table[start : segment.end // self._page_size] = segment.indices
            self._tables[name] = table
        self._cached = lock.length // self._page_size

    def leave(self, length: int) -> Mapping[str, Indices]:
        """Give up what lies behind the windows of `length` tokens (page aligned: a later match may end there); returns the pages
        of it that were the request's own, by component."""
        left: dict[str, Indices] = {}
        for name, component in self._components.items():
            stop = component.first_needed(length) // self._page_size
            if stop <= self._behind[name]:
                continue
            table = self._tables[name].copy()
            own = table[self._first_own(name) : stop]
            if len(own):
                left[name] = own.copy()
            table[:stop] = 0
            self._tables[name], self._behind[name] = table, stop
        return left

    def clear(self) -> Mapping[str, Indices]:
        """Forget everything and return what the request still owned, by component."""
        owned = {name: self.owned(name) for name in self._tables}
        self._tables = dict.fromkeys(self._tables, NO_INDICES)
        self._behind = dict.fromkeys(self._tables, 0)
        self._cached = 0
        return owned

    def _first_own(self, component: str) -> int:
        return max(self._cached, self._behind[component])
