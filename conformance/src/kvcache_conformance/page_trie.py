"""Which whole pages were given so far: what a cache without a limit would know. It holds no data and evicts nothing."""

from typing import final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.tokens import ExtraKey

Ids = npt.NDArray[np.int32]


@final
class PageTrie:
    """A plain model to hold a cache against. `page_size` in tokens."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._known: set[tuple[ExtraKey, bytes]] = set()

    def add(self, ids: Ids, extra_key: ExtraKey) -> None:
        """All whole pages of `ids`."""
        for end in range(self._page_size, len(ids) + 1, self._page_size):
            self._known.add((extra_key, ids[:end].tobytes()))

    def match(self, ids: Ids, extra_key: ExtraKey) -> int:
        """The length, in tokens, of the longest known prefix of whole pages."""
        length = 0
        while (end := length + self._page_size) <= len(ids) and (extra_key, ids[:end].tobytes()) in self._known:
            length = end
        return length
