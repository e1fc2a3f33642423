"""The invariants of the contract's section 9, recounted from the nodes and receipts alone. For tests, after every step.

I8 (content) needs the pools and I9, I10 need actions: they belong to the tests.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from kvcache_core.contracts.results import NO_INDICES, Indices, SizeInfo
from kvcache_core.errors import IntegrityError
from kvcache_radix.node import DIGEST_BYTES, INDEX_BYTES, TOKEN_BYTES, Node, Root
from kvcache_radix.receipt import RELEASED
from kvcache_radix.store import DEVICE, HOST, NodeStore
from kvcache_radix.tree import RadixTree


def check_tree(tree: RadixTree) -> None:
    """I2 to I6. Raises IntegrityError."""
    store = tree.store
    for root in store.roots.values():
        _require(bool(root.children), "I3", f"the root of {root.extra_key!r} is empty")
        _require(root.owner is store.owner and root.parent is None, "I3", "a root belongs to another tree")
    nodes = list(nodes_of(store))
    for node in nodes:
        _check_place(tree, node)
        _check_residency(store, node)
    _check_locks(tree, nodes)
    _check_sizes(store, nodes)
    _check_heaps(store, nodes)


def check_ownership(
    tree: RadixTree, tier: int, c: int, size: SizeInfo, request_owned: Indices | None, in_flight: Indices = NO_INDICES
) -> None:
    """I1: the numbers of `size` sum up, and no index of this component and tier has two owners. `in_flight`: the destinations of
    transfers that run. Raises IntegrityError."""
    _require(sum(size[:5]) == size.total and min(size) >= 0, "I1", f"sizes do not sum up: {size}")
    chunks = [node.cells[c].device if tier == DEVICE else node.cells[c].host for node in nodes_of(tree.store)]
    owned = np.frombuffer(b"".join([chunk for chunk in chunks if chunk is not None]), dtype=np.int32)
    _require(len(in_flight) == size.in_flight, "I1", f"transfers own {len(in_flight)} indices, not {size.in_flight}")
    owned = np.concatenate([owned, in_flight])
    if request_owned is not None:
        named = len(request_owned)
        _require(named == size.request_owned, "I1", f"requests own {named} indices, not {size.request_owned}")
        owned = np.concatenate([owned, request_owned])
    values, counts = np.unique(owned, return_counts=True)
    _require(not (counts > 1).any(), "I1", f"indices with two owners: {values[counts > 1].tolist()}")
    _require(not len(values) or (values[0] >= 1 and values[-1] <= size.total), "I1", "an index is outside the pool")


def nodes_of(store: NodeStore) -> Iterator[Node]:
    """Every node of every root, in no order."""
    todo: list[Node] = [child for root in store.roots.values() for child in (root.children or {}).values()]
    while todo:
        node = todo.pop()
        yield node
        if node.children:
            todo.extend(node.children.values())


def _check_place(tree: RadixTree, node: Node) -> None:
    parent, tokens = node.parent, len(node.key) // TOKEN_BYTES
    _require(parent is not None and bool(parent.children), "I3", f"the node that ends at {node.end} hangs in the air")
    assert parent is not None and parent.children is not None
    first = node.key[: tree.store.page_bytes]
    _require(parent.children.get(first) is node, "I3", f"the node to {node.end} is not its parent's child by its first page")
    _require(node.start == parent.end, "I3", f"a node starts at {node.start}, its parent ends at {parent.end}")
    aligned = node.end % tree.page_size == 0 and tokens % tree.page_size == 0
    _require(tokens > 0 and aligned, "I3", f"the edge to {node.end} is misaligned")
    digests = node.digests is None or len(node.digests) == tokens // tree.page_size * DIGEST_BYTES
    _require(digests, "I3", f"the node to {node.end} has digests of a wrong length")
    _require(tokens <= tree.edge_cap * tree.page_size, "I3", f"the edge to {node.end} has {tokens} tokens, more than the cap")


def _check_residency(store: NodeStore, node: Node) -> None:
    assert node.parent is not None
    pages = (node.end - node.parent.end) // store.page_size
    for cell, above, geometry in zip(node.cells, node.parent.cells, store.geometries, strict=True):
        units = 1 if geometry.at_node_end else pages
        for data in (cell.device, cell.host):
            fits = data is None or len(data) == units * INDEX_BYTES
            _require(fits, "I3", f"{geometry.name} of the node to {node.end} has a wrong length")
        if geometry.prefix_closed:
            _require(cell.device is None or above.device is not None, "I4", f"{geometry.name} at {node.end} has no data above it")
            _require(not cell.empty, "I4", f"the node to {node.end} has no copy of {geometry.name}")
            most = all(cell.locks >= other.locks for other in node.cells)
            _require(most, "LK5", f"{geometry.name} is locked less than others at {node.end}")
            monotone = isinstance(node.parent, Root) or cell.locks <= above.locks
            _require(monotone, "I4", f"locks of {geometry.name} grow at {node.end}")
    if store.closed < 0 and not node.children:
        _require(not all(cell.empty for cell in node.cells), "I4", f"the leaf to {node.end} is empty")
    for c, cell in enumerate(node.cells):
        kids = [kid.cells[c] for kid in (node.children or {}).values()]
        counted = (sum(kid.device is not None for kid in kids), sum(kid.host is not None for kid in kids))
        _require(counted == (cell.device_kids, cell.host_kids), "I2", f"children with data at {node.end}: {counted} counted")


def _check_locks(tree: RadixTree, nodes: list[Node]) -> None:
    expected: Counter[tuple[int, int]] = Counter()
    for receipt in tree.receipts:
        _require(receipt.node is None or receipt.node.end == receipt.length, "LK4", f"{receipt} lost its end")
        for c, stop in enumerate(receipt.stops):
            node = receipt.node
            while stop != RELEASED and node is not None and node.end > stop:
                _require(node.parent is not None, "LK6", f"{receipt} holds a deleted node")
                expected[node.number, c] += 1
                node = node.parent
    for node in nodes:
        for c, cell in enumerate(node.cells):
            counted = expected[node.number, c]
            _require(cell.locks == counted, "I5", f"the node to {node.end} counts {cell.locks} locks, receipts {counted}")
            needed = not counted or cell.device is not None or cell.host is not None
            _require(needed, "LK6", f"the locked node to {node.end} has lost {tree.store.geometries[c].name}")


def _check_sizes(store: NodeStore, nodes: list[Node]) -> None:
    n = len(store.geometries)
    evictable, protected = ([0] * n, [0] * n), ([0] * n, [0] * n)
    for node in nodes:
        for c, cell in enumerate(node.cells):
            if cell.device is not None:
                (protected if cell.locks else evictable)[DEVICE][c] += len(cell.device) // INDEX_BYTES
            if cell.host is not None:
                (protected if cell.locks and cell.device is None else evictable)[HOST][c] += len(cell.host) // INDEX_BYTES
    _require(evictable == store.evictable, "I2", f"evictable is {store.evictable}, counted {evictable}")
    _require(protected == store.protected, "I2", f"protected is {store.protected}, counted {protected}")


def _check_heaps(store: NodeStore, nodes: list[Node]) -> None:
    for tier, heaps in enumerate(store.heaps):
        for c, heap in enumerate(heaps):
            entries = Counter(number for _, number, _ in heap.entries())
            _require(not entries or max(entries.values()) == 1, "I6", "a node is queued twice")
            late = [node.end for clock, _, node in heap.entries() if clock > node.cells[c].clock]
            _require(not late, "I6", f"nodes to {late} are queued later than they were used")
            for node in nodes:
                queued = bool(node.cells[c].queued & 1 << tier)
                _require(queued == (node.number in entries), "I6", f"the node to {node.end} is wrongly marked: queued={queued}")
                _require(queued or not heap.is_candidate(node), "I6", f"the node to {node.end} can be evicted and is not queued")


def _require(condition: bool, rule: str, found: str) -> None:
    if not condition:
        raise IntegrityError(f"{rule}: {found}")
