"""What a prefix cache must know, as plain dictionaries: which pages it was given and has not freed since.

The keys are whole prefixes, one entry for each page boundary, so nothing can be confused, split or pruned. It learns of evictions
from the allocator's journal, not from the cache.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import final

from kvcache_core.contracts.component import TreeComponent
from kvcache_core.contracts.tokens import ExtraKey

TOKEN_BYTES = 4

PageKey = tuple[ExtraKey, bytes]
"""A prefix that ends at a page boundary: its extra_key and its int32 tokens as bytes."""

NOTHING_MORE: Mapping[str, Collection[int]] = {}


@final
class PrefixModel:
    """`geometries` by component name. Positions count tokens; `tokens` are int32 tokens as bytes."""

    def __init__(self, page_size: int, geometries: Mapping[str, TreeComponent]) -> None:
        self.page_size = page_size
        self.geometries = dict(geometries)
        self._index_of: dict[str, dict[PageKey, int]] = {name: {} for name in geometries}
        self._key_of: dict[str, dict[int, PageKey]] = {name: {} for name in geometries}

    def put(self, component: str, extra_key: ExtraKey, prefix: bytes, index: int) -> None:
        key = (extra_key, prefix)
        assert key not in self._index_of[component] and index not in self._key_of[component]
        self._index_of[component][key] = index
        self._key_of[component][index] = key

    def drop(self, component: str, index: int) -> PageKey:
        key = self._key_of[component].pop(index)
        del self._index_of[component][key]
        return key

    def resident(self, component: str) -> Mapping[int, PageKey]:
        """All pages the cache owns, by index."""
        return self._key_of[component]

    def index_at(self, component: str, extra_key: ExtraKey, tokens: bytes, end: int) -> int | None:
        """The page of `component` that ends at position `end`."""
        return self._index_of[component].get((extra_key, tokens[: end * TOKEN_BYTES]))

    def needed_ends(self, component: str, length: int) -> Iterator[int]:
        """Ends of the pages of `component` without which `length` tokens cannot be used: the contract's one rule."""
        first = self.geometries[component].first_needed(length)
        return (end for end in range(self.page_size, length + 1, self.page_size) if end > first)

    def is_usable(
        self, extra_key: ExtraKey, tokens: bytes, length: int, more: Mapping[str, Collection[int]] = NOTHING_MORE
    ) -> bool:
        """Whether `length` tokens are usable, `more` being the ends of further pages by component."""
        return all(
            end in more.get(name, ()) or self.index_at(name, extra_key, tokens, end) is not None
            for name in self.geometries
            for end in self.needed_ends(name, length)
        )

    def longest_usable(self, extra_key: ExtraKey, tokens: bytes, more: Mapping[str, Collection[int]] = NOTHING_MORE) -> int:
        """The longest usable prefix of `tokens`, found by trying every length."""
        longest = len(tokens) // TOKEN_BYTES // self.page_size * self.page_size
        lengths = range(longest, 0, -self.page_size)
        return next((length for length in lengths if self.is_usable(extra_key, tokens, length, more)), 0)

    def unsupported(self, component: str) -> list[PageKey]:
        """Pages of a prefix_closed component that lack the page before them: nothing can use them."""
        page = self.page_size * TOKEN_BYTES
        pages = self._index_of[component]
        return [(key, prefix) for key, prefix in pages if len(prefix) > page and (key, prefix[:-page]) not in pages]
