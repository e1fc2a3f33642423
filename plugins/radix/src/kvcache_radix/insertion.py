"""Insert: decide the longest length that will be usable, then take exactly what lies below it.

Nothing beyond that length is taken, because no lock would cover it while the caller still uses it. The decision is made before
anything is changed. Rules of adoption are the contract's section 6; the cuts make every adopted range a whole node.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.results import NO_INDICES, Indices, InsertResult
from kvcache_core.contracts.tokens import INT32
from kvcache_radix.node import Cell, Node
from kvcache_radix.offer import Offer
from kvcache_radix.store import HOST, NodeStore
from kvcache_radix.usable import longest_usable

Offers = Sequence[Offer | None]


Inserted = tuple[InsertResult, Node | None]
"""The result, and the node that ends at its length; None for length 0."""

Found = tuple[Node, int]
"""Where a walk along the tokens ended: the node that covers position `matched - 1`, and `matched`. A plain tuple: hot path."""


class Insertion:
    """Inserts into one tier of one store. `edge_cap`: the longest edge in tokens, a multiple of the page size.

    In the host tier (pages fetched from storage) a copy in either tier counts as there: what is offered besides is a duplicate.
    """

    def __init__(self, store: NodeStore, edge_cap: int, tier: int) -> None:
        self._store = store
        self._edge_cap = edge_cap
        self._tier = tier
        self._nothing: Mapping[str, Indices] = MappingProxyType(dict.fromkeys(store.components, NO_INDICES))

    def insert(self, view: npt.NDArray[np.int32], offers: Offers, found: Found | None, extra_key: tuple[bytes, ...]) -> Inserted:
        """`view`: the checked tokens; `found`: where matching them ended, None when not even a page is known."""
        path = _path(found)
        matched, total = 0 if found is None else found[1], len(view)
        ends = set[int]()
        for offer in offers:
            if offer is not None:
                ends.update(offer.cuts)
        cuts = sorted(ends)
        needs = [geometry.first_needed(total) for geometry in self._store.geometries]
        length = total
        if not self._all_usable(path, matched, total, offers, needs):
            length = self._length(path, matched, total, offers, cuts)
            needs = [geometry.first_needed(length) for geometry in self._store.geometries]
        duplicates: dict[int, list[bytes]] = {}
        end: Node | None = None
        if length:
            end = self._existing(path, min(matched, length), offers, cuts, duplicates)
            if length > matched:
                end = self._grow(end or self._store.root(extra_key), view, length, offers, cuts)
            assert end is not None
            self._touch(end, needs)
        turned_down = refused = self._nothing
        if duplicates:
            turned_down = self._by_name({c: b"".join(chunks) for c, chunks in duplicates.items()})
        if length < total:
            left = {c: o.pieces(length, total) for c, o in enumerate(offers) if o is not None and o.end > length}
            refused = self._by_name(left)
        return InsertResult(length, turned_down, refused), end

    def insert_closed(
        self, view: npt.NDArray[np.int32], offer: Offer | None, found: Found | None, extra_key: tuple[bytes, ...]
    ) -> Inserted:
        """`insert` into the device tier of the most frequent tree, with a prefix_closed component alone: everything follows from
        where its device data ends. A test holds the two equal."""
        store = self._store
        known, node = 0, None
        if found is not None:
            node, known = found
            if node.cells[0].device is None:
                return self.insert(view, [offer], found, extra_key)
        start, end = (0, 0) if offer is None else (offer.start, offer.end)
        length = end if start <= known < end else known
        if node is not None and known < node.end:
            node = store.split(node, known)
        if length > known:
            if node is None:
                node = store.root(extra_key)
            assert offer is not None
            tokens = view.data
            at = known
            while at < length:
                cut = min(length, at + self._edge_cap)
                node = store.attach(node, tokens[at:cut].tobytes())
                store.put(node, 0, offer.slice(at, cut))
                at = cut
        if node is not None:
            self._touch_path(node)
        nothing = self._nothing
        if offer is None:
            return InsertResult(length, nothing, nothing), node
        result = InsertResult(
            length,
            self._by_name({0: offer.slice(start, known)}) if start < known else nothing,
            self._by_name({0: offer.slice(length, end)}) if length < end else nothing,
        )
        return result, node

    def _touch_path(self, node: Node) -> None:
        """`_touch` where every node of a path is needed. Only the end can be new and a leaf, so only the end is queued."""
        store, end = self._store, node
        clock = store.clock
        above = node.parent
        while above is not None:
            clock += 1
            node.cells[0].clock = clock
            node = above
            above = node.parent
        store.clock = clock
        store.offer(end, 0)

    def _all_usable(self, path: Sequence[Node], matched: int, total: int, offers: Offers, needs: Sequence[int]) -> bool:
        """Whether `_length` is `total`. It nearly always is, and that is seen without looking at everything."""
        if not total:
            return False
        for c, geometry in enumerate(self._store.geometries):
            offer = offers[c]
            if geometry.at_node_end:
                offered = offer is not None and total in offer.states
                if not offered and (matched < total or path[-1].end != total or not self._has(path[-1].cells[c])):
                    return False
                continue
            need, start = needs[c], total
            if offer is not None and offer.end == total and not offer.holes:
                start = offer.start
            if start <= need:
                continue
            if start > matched:
                return False
            for node in reversed(path):
                if node.end <= need:
                    break
                assert node.parent is not None
                if node.parent.end >= start:
                    continue
                cell = node.cells[c]
                if not self._has(cell):
                    return False
                if geometry.prefix_closed and cell.device is not None:
                    break  # device data is there all the way up
        return True

    def _length(self, path: Sequence[Node], matched: int, total: int, offers: Offers, cuts: Sequence[int]) -> int:
        bounds = {node.end for node in path if node.end < matched} | {matched, total, *cuts} - {0}
        ends = sorted(bounds)
        resident: list[list[bool]] = [[] for _ in offers]
        at, start = 0, 0
        for end in ends:
            while at < len(path) and path[at].end < end:
                at += 1
            node = path[at] if at < len(path) and end <= matched else None
            for geometry, offer, has, c in zip(self._store.geometries, offers, resident, range(len(offers)), strict=True):
                there = node is not None and self._has(node.cells[c])
                if geometry.at_node_end:
                    has.append((there and node is not None and node.end == end) or (offer is not None and end in offer.states))
                else:
                    has.append(there or (offer is not None and offer.covers(start, end)))
            start = end
        return longest_usable(self._store.geometries, ends, resident)

    def _existing(
        self, path: Sequence[Node], limit: int, offers: Offers, cuts: Sequence[int], duplicates: dict[int, list[bytes]]
    ) -> Node | None:
        """Adopt or turn down what is offered for the known part, up to `limit`; returns the node that ends there."""
        end: Node | None = None
        first = cuts[0] if cuts else limit
        for whole in path:
            assert whole.parent is not None
            if whole.parent.end >= limit:
                break
            if whole.end < first and whole.end <= limit:
                end = whole
                continue
            # Nearly always nothing begins or ends inside a node, and there is nothing to cut.
            following = bisect_right(cuts, whole.parent.end)
            cut = whole.end > limit or (following < len(cuts) and cuts[following] < whole.end)
            for end in self._cut(whole, limit, offers) if cut else (whole,):
                assert end.parent is not None
                for c, offer in enumerate(offers):
                    data = b"" if offer is None else self._offered(offer, c, end)
                    if not data:
                        continue
                    if not self._has(end.cells[c]):
                        end.cells[c].clock = 0
                        end.cells[c].stored = None  # what was known was said of a copy that was lost
                        self._store.put(end, c, data, self._tier)
                    else:
                        duplicates.setdefault(c, []).append(data)
        return end

    def _has(self, cell: Cell) -> bool:
        return cell.device is not None or (self._tier == HOST and cell.host is not None)

    def _offered(self, offer: Offer, c: int, node: Node) -> bytes:
        if self._store.geometries[c].at_node_end:
            return offer.states.get(node.end, b"")
        assert node.parent is not None
        start = node.parent.end
        return offer.pieces(start, node.end) if offer.holes else offer.slice(start, node.end)

    def _cut(self, node: Node, limit: int, offers: Offers) -> list[Node]:
        """Cut `node` where something is adopted for a part of it, and at `limit`; returns the pieces up to `limit`."""
        assert node.parent is not None
        start, end = node.parent.end, min(node.end, limit)
        cuts = {end}
        for cell, offer in zip(node.cells, offers, strict=True):
            if offer is None:
                continue
            if offer.states or (not self._has(cell) and offer.start < end and offer.end > start):
                cuts.update(offer.cuts)
        pieces = [self._store.split(node, at) for at in sorted(cuts) if start < at <= end and at < node.end]
        if node.end <= limit:
            pieces.append(node)
        return pieces

    def _grow(self, parent: Node, view: npt.NDArray[np.int32], length: int, offers: Offers, cuts: Sequence[int]) -> Node:
        """New nodes for [parent.end, length), each uniform in what it holds."""
        start = parent.end
        for cut in cuts if cuts and cuts[-1] == length else sorted({*cuts, length}):
            while start < cut <= length:
                end = min(cut, start + self._edge_cap)
                node = self._store.attach(parent, view[start:end].tobytes())
                for c, offer in enumerate(offers):
                    data = b"" if offer is None else self._offered(offer, c, node)
                    if data:
                        self._store.put(node, c, data, self._tier)
                parent, start = node, end
        return parent

    def _touch(self, end: Node, needs: Sequence[int]) -> None:
        """Blocks count from last to first, so that the end of a prefix is evicted before its beginning. `needs`: what going on
        from there needs, by component."""
        store = self._store
        clock = store.clock
        node, above = end, end.parent
        while above is not None:
            for c, cell in enumerate(node.cells):
                if not cell.clock:  # adopted just now, perhaps behind the window
                    clock += 1
                    cell.clock = clock
                    store.offer(node, c)
                elif node.end > needs[c]:
                    clock += 1
                    cell.clock = clock
            node, above = above, above.parent
        store.clock = clock

    def _by_name(self, data: Mapping[int, bytes]) -> Mapping[str, Indices]:
        if not any(data.values()):
            return self._nothing
        named = dict(self._nothing)
        for c, chunk in data.items():
            if chunk:
                named[self._store.geometries[c].name] = np.frombuffer(chunk, dtype=INT32)
        return named


def _path(found: Found | None) -> list[Node]:
    """Nodes from the one below the root down to the one found."""
    path: list[Node] = []
    node = None if found is None else found[0]
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    path.reverse()
    return path
