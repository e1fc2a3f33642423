"""One prompt cut into pages, and what is where of each: the plain data from which a fetch is planned.

It answers with the tree's own rule (`longest_usable`) what a set of pages is good for. It knows no storage and no slots.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.tokens import ExtraKey
from kvcache_radix.geometry import Geometry
from kvcache_radix.node import Node
from kvcache_radix.tree import RadixTree
from kvcache_radix.usable import longest_usable

Flags = list[list[bool]]
"""By component number and page: whether something is there; for a component `at_node_end`, the state at the page's end."""


@final
class PrefixPages:
    """`view`: int32, whole pages, not shared with anybody."""

    def __init__(self, tree: RadixTree, view: npt.NDArray[np.int32], extra_key: ExtraKey) -> None:
        self.view = view
        self.extra_key = extra_key
        self.n = len(view) // tree.page_size
        self.ends = [(i + 1) * tree.page_size for i in range(self.n)]
        self._tree = tree
        self._geometries: Sequence[Geometry] = tree.store.geometries

    def resident(self) -> Flags:
        """What memory has now, in either tier."""
        match = self._tree.match(self.view, self.extra_key)
        page, flags = self._tree.page_size, self.none()
        node, end = match.handle, match.matched_len
        while isinstance(node, Node) and node.parent is not None:
            start = node.parent.end
            for c, (geometry, cell) in enumerate(zip(self._geometries, node.cells, strict=True)):
                if cell.device is None and cell.host is None:
                    continue
                if not geometry.at_node_end:
                    flags[c][start // page : end // page] = [True] * ((end - start) // page)
                elif node.end == end:
                    flags[c][end // page - 1] = True
            node, end = node.parent, start
        return flags

    def none(self) -> Flags:
        return [[False] * self.n for _ in self._geometries]

    def usable(self, there: Flags, limit: int) -> int:
        """The longest usable length of at most `limit` tokens."""
        n = limit // self._tree.page_size
        return longest_usable(self._geometries, self.ends[:n], [flags[:n] for flags in there])

    def needed(self, c: int, length: int) -> range:
        """The pages whose data of component `c` a prefix of `length` needs."""
        page, last = self._tree.page_size, length // self._tree.page_size
        if not length:
            return range(0)
        return (
            range(last - 1, last)
            if self._geometries[c].at_node_end
            else range(self._geometries[c].first_needed(length) // page, last)
        )


def either(left: Flags, right: Flags) -> Flags:
    """What is there in one or the other."""
    return [[a or b for a, b in zip(x, y, strict=True)] for x, y in zip(left, right, strict=True)]
