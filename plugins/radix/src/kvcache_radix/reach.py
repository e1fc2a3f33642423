"""How far a prefix that was found can be used, from one tier or from both. It looks at nodes; the rule itself is in `usable`.

A test holds the two equal.
"""

from collections.abc import Sequence

from kvcache_radix.geometry import Geometry
from kvcache_radix.node import Node


def reach(geometries: Sequence[Geometry], node: Node, matched: int, *, host: bool) -> int:
    """The longest usable length within [0, matched], where `node` covers position `matched - 1`; with `host`, a copy in either
    tier will do. It walks upwards no further than what is needed, since nearly always the first length is usable."""
    end = matched
    for c, geometry in enumerate(geometries):
        if geometry.prefix_closed:
            node, end = _below_closed(node, end, c, host)
    while end:
        lacking = _lacking(geometries, node, end, host)
        if lacking is None:
            return end
        # Whatever is longer than what lies above that node needs it as well: `first_needed` never decreases, and is below every
        # length (or equal to every one).
        assert lacking.parent is not None, "a root's cells hold empty data"
        node = lacking.parent
        end = node.end
    return 0


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


def _below_closed(node: Node, end: int, c: int, host: bool) -> tuple[Node, int]:
    """The part of a path that the prefix_closed component `c` allows: above the first node with device data, all have it."""
    each = node
    while each.cells[c].device is None:
        assert each.parent is not None, "a root's cells hold empty data"
        lacks = not host or each.cells[c].host is None
        each = each.parent
        if lacks:
            node, end = each, each.end
    return node, end


def _lacking(geometries: Sequence[Geometry], node: Node, end: int, host: bool) -> Node | None:
    """A node without which `end` is not usable, as far as components that are not prefix_closed go; None where there is none."""
    for c, geometry in enumerate(geometries):
        if geometry.prefix_closed:
            continue
        if geometry.at_node_end:
            cell = node.cells[c]
            if node.end > end or (cell.device is None and not (host and cell.host is not None)):
                return node
            continue
        need = geometry.first_needed(end)
        if need >= end:
            continue
        each = node
        while True:
            cell = each.cells[c]
            if cell.device is None and not (host and cell.host is not None):
                return each
            assert each.parent is not None, "a root's cells hold empty data"
            each = each.parent
            if each.end <= need:
                break
    return None
