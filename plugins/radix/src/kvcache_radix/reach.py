"""How far a prefix that was found can be used, from one tier or from both. It looks at nodes; the rule itself is in `usable`."""

from collections.abc import Sequence

from kvcache_radix.geometry import Geometry
from kvcache_radix.node import Node
from kvcache_radix.usable import longest_usable


def reach(geometries: Sequence[Geometry], node: Node, matched: int, *, host: bool) -> int:
    """The longest usable length within [0, matched), where `node` covers position `matched - 1`; with `host`, a copy in either
    tier will do."""
    ends: list[int] = []
    path: list[Node] = []
    end = matched
    above = node.parent
    while above is not None:
        ends.append(end)
        path.append(node)
        node, end, above = above, above.end, above.parent
    ends.reverse()
    path.reverse()
    resident = [
        [
            (n.cells[c].device is not None or (host and n.cells[c].host is not None)) and not (g.at_node_end and n.end > e)
            for n, e in zip(path, ends, strict=True)
        ]
        for c, g in enumerate(geometries)
    ]
    return longest_usable(geometries, ends, resident)


def reach_closed(node: Node, matched: int) -> tuple[int, int]:
    """Both lengths, device and host, for a tree with a prefix_closed component alone: up to the first node with device data,
    above which all have it. A node with neither copy (a copy out is running) ends what the host can serve."""
    host_len = matched
    while node.cells[0].device is None:
        assert node.parent is not None, "a root's cells hold empty data"
        if node.cells[0].host is None:
            host_len = node.parent.end
        node = node.parent
    return min(node.end, matched), host_len
