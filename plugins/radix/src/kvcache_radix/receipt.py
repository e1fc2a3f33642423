"""The receipt of a lock. It finds its nodes again by walking up from the end node, so splits need not know about it."""

import numpy as np

from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import NO_INDICES, Segment
from kvcache_core.contracts.tokens import INT32
from kvcache_core.errors import LockError
from kvcache_radix.node import INDEX_BYTES, Node
from kvcache_radix.store import NodeStore

RELEASED = -1


class TreeLock(Lock):
    """`node`: the one that ends at `length`, None for length 0. `stops[c]`: the start of the locked node nearest the root
    (LK2), or RELEASED. Only the tree writes them."""

    __slots__ = ("_length", "_store", "node", "stops")

    def __init__(self, store: NodeStore, node: Node | None, length: int, stops: list[int]) -> None:
        self._store = store
        self._length = length
        self.node = node
        self.stops = stops

    @property
    def length(self) -> int:
        return self._length

    def segment(self, component: str) -> Segment:
        store, length, node = self._store, self._length, self.node
        c = store.components[component]
        stop = self.stops[c]
        if stop == RELEASED:
            raise LockError(f"{self} no longer covers {component!r}; take its segment before releasing it")
        geometry, page = store.geometries[c], store.page_size
        start = geometry.first_needed(length)
        start -= start % page
        chunks: list[bytes] = []
        while node is not None and node.end > stop:
            data = node.cells[c].device
            if data is None:
                raise LockError(f"{component!r} of {self} is in host memory; load it first")
            chunks.append(data)
            node = node.parent
        if not chunks:
            return Segment(start, start, NO_INDICES)
        if len(chunks) == 1:
            [whole] = chunks
        else:
            chunks.reverse()
            whole = b"".join(chunks)
        # the locked node nearest the root may begin before the window does
        skip = (start - stop) // page * INDEX_BYTES if start and not geometry.at_node_end else 0
        return Segment(start, length, np.frombuffer(whole, INT32, -1, skip))

    def __repr__(self) -> str:
        state = "released" if self.stops and all(stop == RELEASED for stop in self.stops) else "held"
        return f"<lock of {self._length} tokens, {state}, {id(self):#x}>"
