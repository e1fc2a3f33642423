"""The nodes of a tree with their sizes and victim heaps. Every change of a cell goes through here, so that none is forgotten.

Rules that live here: LK3, LK4, LK6 and LK7 of the contract (splits, and when a node is queued for eviction), what a demotion
takes along, and when a node or a root goes. It does not know token matching, receipts or allocators.
"""

from collections.abc import Sequence
from typing import Final

from kvcache_radix.geometry import Geometry
from kvcache_radix.node import DIGEST_BYTES, INDEX_BYTES, TOKEN_BYTES, Cell, Node, Root
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.victims import VictimHeap

DEVICE: Final = 0
HOST: Final = 1
TIERS: Final = {"device": DEVICE, "host": HOST}

Sizes = tuple[list[int], list[int]]
"""Numbers of indices, by tier and component number."""


class NodeStore:
    """Nodes over `geometries` and, with `host`, two tiers. Sizes count indices: `evictable[tier][c]`, `protected[tier][c]`."""

    def __init__(self, page_size: int, geometries: Sequence[Geometry], *, host: bool) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.geometries = tuple(geometries)
        self.components = {g.name: c for c, g in enumerate(self.geometries)}
        closed = [c for c, g in enumerate(self.geometries) if g.prefix_closed]
        if not self.geometries or len(self.components) != len(self.geometries) or len(closed) > 1:
            raise ValueError("a tree needs components with different names, at most one of them prefix closed")
        if all(g.first_needed(page_size) >= page_size for g in self.geometries):
            raise ValueError("at least one component must need data of every page, or tokens that nobody computed would match")
        self.closed = closed[0] if closed else -1
        self.has_host = host
        self.roots: dict[tuple[bytes, ...], Root] = {}
        self.clock = 0
        self.owner = object()
        n = len(self.geometries)
        self.evictable = ([0] * n, [0] * n)
        self.protected = ([0] * n, [0] * n)
        self.heaps = tuple(
            tuple(VictimHeap(c, 1 << tier, _CANDIDATE[tier][g.prefix_closed]) for c, g in enumerate(self.geometries))
            for tier in ((DEVICE, HOST) if host else (DEVICE,))
        )
        self._everywhere = (1 << len(self.heaps)) - 1
        self._number = 0

    # nodes

    def root(self, extra_key: tuple[bytes, ...]) -> Root:
        """The root of `extra_key`, made when it is missing. Attach a child before anything else can run: empty roots go."""
        root = self.roots.get(extra_key)
        if root is None:
            self._number += 1
            root = self.roots[extra_key] = Root(extra_key, self.owner, self._number, len(self.geometries))
        return root

    def attach(self, parent: Node, key: bytes) -> Node:
        """A new empty leaf under `parent`. Give it data with `put` before anything else can run."""
        self._number += 1
        end = parent.end + len(key) // TOKEN_BYTES
        node = Node(parent, key, end, self._number, tuple([Cell() for _ in self.geometries]))
        if parent.children is None:
            parent.children = {}
        parent.children[key[: self.page_bytes]] = node
        return node

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` at position `at`; returns the new head [start, at). The tail keeps identity and `end` (LK4), so handles,
        receipts and transfers that name it stay right. The head is as old as the tail: a split is no use of the data."""
        parent = node.parent
        assert parent is not None and parent.children is not None and parent.end < at < node.end
        cut = (at - parent.end) * TOKEN_BYTES
        indices_cut = (at - parent.end) // self.page_size * INDEX_BYTES
        self._number += 1
        cells = [_split_cell(g, cell, indices_cut) for g, cell in zip(self.geometries, node.cells, strict=True)]
        head = Node(parent, node.key[:cut], at, self._number, tuple(cells))
        parent.children[head.key[: self.page_bytes]] = head
        node.key = node.key[cut:]
        node.parent = head
        head.children = {node.key[: self.page_bytes]: node}
        if node.digests is not None:
            cut_digests = (at - parent.end) // self.page_size * DIGEST_BYTES
            head.digests, node.digests = node.digests[:cut_digests], node.digests[cut_digests:]
        for c, cell in enumerate(head.cells):
            if self.geometries[c].at_node_end:
                above = parent.cells[c]
                above.device_kids -= cell.device_kids
                above.host_kids -= cell.host_kids
            if cell.operation is not None:
                cell.operation.on_split(head)
            self.offer(head, c)
        return head

    # residency

    def put(self, node: Node, c: int, data: bytes, tier: int = DEVICE) -> None:
        """The node now owns the indices `data` of component `c` in `tier`, where it had none. `offer` it once it has a clock."""
        parent = node.parent
        assert parent is not None
        cell, above = node.cells[c], parent.cells[c]
        if tier == DEVICE:
            assert cell.device is None
            if cell.locks and cell.host is not None:
                self._move(self.protected, self.evictable, HOST, c, cell.host)
            cell.device = data
            above.device_kids += 1
        else:
            assert cell.host is None
            cell.host = data
            above.host_kids += 1
        pinned = cell.locks and (tier == DEVICE or cell.device is None)
        (self.protected if pinned else self.evictable)[tier][c] += len(data) // INDEX_BYTES

    def take(self, node: Node, c: int, tier: int = DEVICE) -> bytes:
        """The node gives up its indices of component `c` in `tier`. The caller frees them, then calls `settle`."""
        parent = node.parent
        assert parent is not None
        cell, above = node.cells[c], parent.cells[c]
        data = cell.device if tier == DEVICE else cell.host
        assert data is not None
        pinned = cell.locks and (tier == DEVICE or cell.device is None)
        (self.protected if pinned else self.evictable)[tier][c] -= len(data) // INDEX_BYTES
        if tier == DEVICE:
            cell.device = None
            above.device_kids -= 1
            if cell.host is not None:
                if cell.locks:
                    self._move(self.evictable, self.protected, HOST, c, cell.host)
                self.offer(node, c)
        else:
            cell.host = None
            above.host_kids -= 1
        if parent.parent is not None:
            self.offer(parent, c)
        return data

    def demote(self, node: Node, c: int, reclaimed: Reclaimed) -> None:
        """Take the device data of `c`; a prefix_closed component takes the node's others along, which nothing can use without
        it. Then drop what is left without any copy."""
        reclaimed.add(DEVICE, c, self.take(node, c))
        if c == self.closed:
            for other, cell in enumerate(node.cells):
                if cell.device is not None:
                    assert not cell.locks, "LK5: another component is locked where the prefix_closed one is not"
                    reclaimed.add(DEVICE, other, self.take(node, other))
        self.settle(node, reclaimed)

    def settle(self, node: Node, reclaimed: Reclaimed) -> None:
        """After data left `node`: drop it with its subtree, or prune empty leaves upwards, or leave a hole."""
        if self.closed >= 0:
            if node.cells[self.closed].empty:
                self.drop(node, reclaimed)
            return
        while node.parent is not None and not node.children and all(cell.empty for cell in node.cells):
            above = node.parent
            self.drop(node, reclaimed)
            node = above

    def drop(self, node: Node, reclaimed: Reclaimed) -> None:
        """Delete `node` and everything below it, and its root when that was the last child. Destinations of transfers that
        run are not touched: their commits find the node gone."""
        top = node.parent
        assert top is not None and top.children is not None
        doomed = [node]
        for each in doomed:
            if each.children:
                doomed.extend(each.children.values())
        for each in reversed(doomed):
            for c, cell in enumerate(each.cells):
                assert not cell.locks, "LK6: a locked node is never deleted"
                if cell.host is not None or cell.operation is not None:
                    reclaimed.lost_tokens += 1 if self.geometries[c].at_node_end else each.end - each.start
                if cell.device is not None:
                    reclaimed.add(DEVICE, c, self.take(each, c))
                if cell.host is not None:
                    reclaimed.add(HOST, c, self.take(each, c, HOST))
        del top.children[node.key[: self.page_bytes]]
        for each in doomed:
            each.parent = None
            each.children = None
            each.key = b""
            each.digests = None
            for c, cell in enumerate(each.cells):
                for heap in self.heaps:
                    heap[c].bury(cell)
        if not top.children and isinstance(top, Root):
            del self.roots[top.extra_key]

    # locks

    def pin(self, cell: Cell, c: int) -> None:
        """The first lock on a cell."""
        cell.locks = 1
        if cell.device is not None:  # `_move` written out: every lock comes here
            units = len(cell.device) // INDEX_BYTES
            self.evictable[DEVICE][c] -= units
            self.protected[DEVICE][c] += units
        elif cell.host is not None:
            self._move(self.evictable, self.protected, HOST, c, cell.host)

    def unpin(self, node: Node, cell: Cell, c: int) -> None:
        """The last lock on a cell goes (LK7)."""
        cell.locks = 0
        if cell.device is not None:
            units = len(cell.device) // INDEX_BYTES
            self.protected[DEVICE][c] -= units
            self.evictable[DEVICE][c] += units
        elif cell.host is not None:
            self._move(self.protected, self.evictable, HOST, c, cell.host)
        if cell.queued != self._everywhere:
            self.offer(node, c)

    def offer(self, node: Node, c: int) -> None:
        """Queue the node for eviction wherever it is a candidate."""
        cell = node.cells[c]
        if cell.device is not None:
            self.heaps[DEVICE][c].offer(node, cell)
        if cell.host is not None:
            self.heaps[HOST][c].offer(node, cell)

    def clear(self, reclaimed: Reclaimed) -> None:
        """Delete everything."""
        for root in list(self.roots.values()):
            for child in list((root.children or {}).values()):
                self.drop(child, reclaimed)
        for tier in self.heaps:
            for heap in tier:
                heap.clear()

    def _move(self, source: Sizes, target: Sizes, tier: int, c: int, data: bytes) -> None:
        units = len(data) // INDEX_BYTES
        source[tier][c] -= units
        target[tier][c] += units


def _split_cell(geometry: Geometry, tail: Cell, cut: int) -> Cell:
    if geometry.at_node_end:
        head = Cell(0, tail.clock)  # LK3: the state and the receipts for it stay at the end
    else:
        head = Cell(tail.locks, tail.clock)
        head.operation = tail.operation
        head.stored = tail.stored
        if tail.device is not None:
            head.device, tail.device = tail.device[:cut], tail.device[cut:]
        if tail.host is not None:
            head.host, tail.host = tail.host[:cut], tail.host[cut:]
    head.device_kids = 0 if tail.device is None else 1
    head.host_kids = 0 if tail.host is None else 1
    return head


def _device_any(node: Node, cell: Cell) -> bool:
    return cell.device is not None and not cell.locks


def _device_leaf(node: Node, cell: Cell) -> bool:
    return cell.device is not None and not cell.locks and not cell.device_kids


def _host_any(node: Node, cell: Cell) -> bool:
    return cell.host is not None and (cell.device is not None or not cell.locks)


def _host_leaf(node: Node, cell: Cell) -> bool:
    return cell.host is not None and (cell.device is not None or not (cell.locks or cell.host_kids))


_CANDIDATE = ((_device_any, _device_leaf), (_host_any, _host_leaf))
