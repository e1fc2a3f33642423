"""Which part of a victim goes when less than all of it is asked for. It cuts nodes; it frees nothing and keeps no order."""

from kvcache_radix.node import INDEX_BYTES, Node
from kvcache_radix.store import DEVICE, NodeStore


def trim(store: NodeStore, node: Node, c: int, n: int, tier: int, copied: int) -> Node:
    """The part of `node` that an eviction of `n` indices of component `c` from `tier` takes: at most `n`, or `copied` where that
    is more and the other tier has them too. `node` is no longer queued in its heap; what stays of it is.

    What has a copy stays in the tree: cut off page by page, a prefix would become a node a page, and slow for ever. A component
    that prefixes need from their start loses the end. Of a window the end is what is needed, so its start goes, and of what is
    needed never more than `n`.
    """
    cell, geometry = node.cells[c], store.geometries[c]
    data = cell.device if tier == DEVICE else cell.host
    assert data is not None and node.parent is not None
    if copied > n and cell.device is not None and cell.host is not None:
        if not geometry.prefix_closed:
            copied = min(copied, (geometry.first_needed(node.end) - node.parent.end) // store.page_size)
        n = max(n, copied)
    if len(data) <= n * INDEX_BYTES or geometry.at_node_end:
        return node
    if geometry.prefix_closed:
        store.split(node, node.end - n * store.page_size)
        return node
    head = store.split(node, node.parent.end + n * store.page_size)
    store.offer(node, c)
    return head
