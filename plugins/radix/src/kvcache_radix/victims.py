"""The victim heap of one component and tier: least recently used first, O(log n), without a wall clock or an address in it.

Entries are lazy. A touch does not move an entry and a node that stops being a candidate keeps its entry: both are found out when
it is popped. A node has at most one entry, so the heap never outgrows the tree. It does not know what a candidate is.

Nearly every node is queued while it is the most recent one. Such entries arrive in order and wait in a plain queue, only the
others in a heap: a pop from a heap of a million entries spends 5 us on cache misses, one from the queue next to nothing.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from kvcache_radix.node import Cell, Node

SLACK = 64  # below this many dead entries a rebuild is not worth it

Entry = tuple[int, int, Node]
"""(clock when it was queued, node number, node)."""


class VictimHeap:
    """`bit` marks membership in `Cell.queued`. `candidate(node, cell)` says whether the node may be a victim now."""

    __slots__ = ("_bit", "_candidate", "_component", "_dead", "_heap", "_in_order")

    def __init__(self, component: int, bit: int, candidate: Callable[[Node, Cell], bool]) -> None:
        self._component = component
        self._bit = bit
        self._candidate = candidate
        self._in_order: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._in_order) + len(self._heap)

    def offer(self, node: Node, cell: Cell) -> None:
        """Queue the node if it is a candidate and not queued yet."""
        if not cell.queued & self._bit and self._candidate(node, cell):
            cell.queued |= self._bit
            entry = (cell.clock, node.number, node)
            if not self._in_order or entry > self._in_order[-1]:  # `_push` written out: every new node comes here
                self._in_order.append(entry)
            else:
                heappush(self._heap, entry)

    def pop(self) -> Node | None:
        """Remove and return the least recently used candidate. The caller evicts it or offers it again."""
        in_order, heap, component, bit = self._in_order, self._heap, self._component, self._bit
        while in_order or heap:
            if in_order and not (heap and heap[0] < in_order[0]):
                clock, number, node = in_order.popleft()
            else:
                clock, number, node = heappop(heap)
            cell = node.cells[component]
            if not self._candidate(node, cell):
                cell.queued &= ~bit
                if node.parent is None and self._dead:
                    self._dead -= 1
            elif cell.clock != clock:
                self._push((cell.clock, number, node))
            else:
                cell.queued &= ~bit
                return node
        return None

    def bury(self, cell: Cell) -> None:
        """Its node was deleted. The entry is dropped when popped, or by a rebuild once such entries are the majority."""
        if cell.queued & self._bit:
            self._dead += 1
            if self._dead > SLACK and 2 * self._dead > len(self):
                self._rebuild()

    def clear(self) -> None:
        for _, _, node in self.entries():
            node.cells[self._component].queued &= ~self._bit
        self._in_order.clear()
        self._heap.clear()
        self._dead = 0

    def is_candidate(self, node: Node) -> bool:
        """For integrity checks."""
        return self._candidate(node, node.cells[self._component])

    def entries(self) -> list[Entry]:
        """For integrity checks, in no order."""
        return [*self._in_order, *self._heap]

    def _push(self, entry: Entry) -> None:
        if not self._in_order or entry > self._in_order[-1]:
            self._in_order.append(entry)
        else:
            heappush(self._heap, entry)

    def _rebuild(self) -> None:
        for _, _, node in self.entries():
            if node.parent is None:
                node.cells[self._component].queued &= ~self._bit
        self._in_order = deque(entry for entry in self._in_order if entry[2].parent is not None)
        self._heap = [entry for entry in self._heap if entry[2].parent is not None]
        heapify(self._heap)
        self._dead = 0
