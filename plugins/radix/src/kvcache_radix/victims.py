"""The victim heap of one component and tier: least recently used first, O(log n), without a wall clock or an address in it.

Entries are lazy. A touch does not move an entry and a node that stops being a candidate keeps its entry: both are found out when
it is popped. A node has at most one entry, so the heap never outgrows the tree. It does not know what a candidate is.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from kvcache_radix.node import Cell, Node

SLACK = 64  # below this many dead entries a rebuild is not worth it


class VictimHeap:
    """`bit` marks membership in `Cell.queued`. `candidate(node, cell)` says whether the node may be a victim now."""

    __slots__ = ("_bit", "_candidate", "_component", "_dead", "_entries")

    def __init__(self, component: int, bit: int, candidate: Callable[[Node, Cell], bool]) -> None:
        self._component = component
        self._bit = bit
        self._candidate = candidate
        self._entries: list[tuple[int, int, Node]] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._entries)

    def offer(self, node: Node, cell: Cell) -> None:
        """Queue the node if it is a candidate and not queued yet."""
        if not cell.queued & self._bit and self._candidate(node, cell):
            cell.queued |= self._bit
            heappush(self._entries, (cell.clock, node.number, node))

    def pop(self) -> Node | None:
        """Remove and return the least recently used candidate. The caller evicts it or offers it again."""
        entries, component, bit = self._entries, self._component, self._bit
        while entries:
            clock, number, node = entries[0]
            cell = node.cells[component]
            if not self._candidate(node, cell):
                heappop(entries)
                cell.queued &= ~bit
                if node.parent is None and self._dead:
                    self._dead -= 1
            elif cell.clock != clock:
                heapreplace(entries, (cell.clock, number, node))
            else:
                heappop(entries)
                cell.queued &= ~bit
                return node
        return None

    def bury(self, cell: Cell) -> None:
        """Its node was deleted. The entry is dropped when popped, or by a rebuild once such entries are the majority."""
        if cell.queued & self._bit:
            self._dead += 1
            if self._dead > SLACK and 2 * self._dead > len(self._entries):
                self._rebuild()

    def clear(self) -> None:
        for _, _, node in self._entries:
            node.cells[self._component].queued &= ~self._bit
        self._entries.clear()
        self._dead = 0

    def is_candidate(self, node: Node) -> bool:
        """For integrity checks."""
        return self._candidate(node, node.cells[self._component])

    def entries(self) -> list[tuple[int, int, Node]]:
        """For integrity checks: (clock, node number, node), in heap order."""
        return self._entries

    def _rebuild(self) -> None:
        alive: list[tuple[int, int, Node]] = []
        for entry in self._entries:
            if entry[2].parent is None:
                entry[2].cells[self._component].queued &= ~self._bit
            else:
                alive.append(entry)
        heapify(alive)
        self._entries = alive
        self._dead = 0
