"""One copy of one component's data of one node, under way between two tiers.

It names its place by token positions, not by node: a split while it runs spreads it over several nodes, a deletion takes some
away, and whatever is left when it ends is found by position. The destination indices belong to it until then.
"""

from collections.abc import Iterator
from typing import final

import numpy as np

from kvcache_core.contracts.results import NO_INDICES, Indices
from kvcache_radix.geometry import Geometry
from kvcache_radix.node import Cell, Node


@final
class Operation:
    """`destination`: int32, one index a page of [start, end), or one where the component keeps a unit at a node's end."""

    __slots__ = ("_at_node_end", "_page_size", "_start", "c", "destination", "done", "nodes")

    def __init__(self, node: Node, c: int, geometry: Geometry, page_size: int, destination: Indices) -> None:
        self.c = c
        self.destination = destination
        self.done = False
        self.nodes = [node]
        self._start = node.start
        self._page_size = page_size
        self._at_node_end = geometry.at_node_end
        node.cells[c].operation = self

    def on_split(self, head: Node) -> None:
        """The tree cut one of the nodes."""
        self.nodes.append(head)

    def finish(self) -> Iterator[tuple[Node, Cell, slice]]:
        """End the operation: yields each node that is still there and still refers to it, from the root downwards, with the part
        of `destination` that is its own. An operation that was overwritten finds itself a stranger everywhere."""
        self.done = True
        alive = [node for node in self.nodes if node.parent is not None]
        for node in sorted(alive, key=lambda node: node.end):
            cell = node.cells[self.c]
            # What the caller did with the nodes above may have deleted this one.
            if node.parent is not None and cell.operation is self:
                cell.operation = None
                yield node, cell, self._part(node)

    def rest(self, landed: list[slice]) -> Indices:
        """What of `destination` did not land anywhere and is to be freed."""
        if len(landed) == 1 and landed[0] == slice(0, len(self.destination)):
            return NO_INDICES  # nearly always
        keep = np.ones(len(self.destination), np.bool_)
        for part in landed:
            keep[part] = False
        return self.destination[keep]

    def _part(self, node: Node) -> slice:
        if self._at_node_end:
            return slice(0, 1)
        return slice((node.start - self._start) // self._page_size, (node.end - self._start) // self._page_size)
