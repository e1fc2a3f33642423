"""RadixTree: what a prefix cache knows about token prefixes, for any set of components and with one tier or two.

Edges are int32 bytes compared by memcmp; numpy looks at tokens only where an edge differs. Children are found by the bytes of
their first page; each extra_key has a root of its own. The design follows the radix trees of SGLang and the block tables of
vLLM; deriving everything from `first_needed` and keeping no marks in nodes is this project's.
It does not know allocators, pools, transfers or storage: what leaves it is handed to the caller.
"""

from collections.abc import Sequence
from operator import index

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.cache import Tier
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import InsertResult, MatchResult, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds, check_extra_key, check_not_negative, token_view
from kvcache_core.errors import LockError
from kvcache_radix import trimming
from kvcache_radix.geometry import Geometry
from kvcache_radix.insertion import Found, Inserted, Insertion
from kvcache_radix.node import INDEX_BYTES, Node, Root
from kvcache_radix.offer import Offer, read_offers
from kvcache_radix.reach import reach, reach_closed
from kvcache_radix.receipt import RELEASED, TreeLock
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import DEVICE, HOST, TIERS, NodeStore

EDGE_CAP_TOKENS = 32_768
"""Longest edge unless told otherwise: long enough that a 128k-token match visits 4 nodes, short enough that a split is cheap and
a victim that cannot be trimmed is no large part of a pool."""


class RadixTree:
    """`page_size` in tokens, `edge_cap` in pages. With `host`, nodes also have indices in a host tier.

    The methods are those of `BasePrefixCache`, except that `evict` and `clear` return what the caller must free.
    """

    def __init__(
        self, page_size: int, geometries: Sequence[Geometry], *, host: bool = False, edge_cap: int | None = None
    ) -> None:
        if page_size < 1 or (edge_cap is not None and edge_cap < 1):
            raise ValueError(f"page_size and edge_cap must be at least 1, not {page_size} and {edge_cap}")
        self.page_size = page_size
        self.edge_cap = max(1, EDGE_CAP_TOKENS // page_size) if edge_cap is None else edge_cap
        self.store = NodeStore(page_size, geometries, host=host)
        self.receipts: set[TreeLock] = set()
        self._insertion = Insertion(self.store, self.edge_cap * page_size, DEVICE)
        self._host_insertion = Insertion(self.store, self.edge_cap * page_size, HOST)
        self._only_closed = self.store.closed == 0 and len(geometries) == 1
        # such a node lives exactly as long as its device data, so whatever is known is usable
        self._simple = self._only_closed and not host

    # match

    def match(self, ids: TokenIds, extra_key: ExtraKey = ()) -> MatchResult:
        """Changes nothing. Raises TypeError or ValueError for what cannot be a key."""
        view = token_view(ids)
        found = self._find(view, extra_key)
        # what was matched equals tokens that were checked when they were inserted
        if found is None:
            check_not_negative(view)
            return MatchResult(None, 0, 0, 0)
        node, matched = found
        if matched < len(view):
            check_not_negative(view, matched)
        if self._simple:
            return MatchResult(node, matched, matched, matched)
        if self._only_closed:
            device_len, host_len = reach_closed(node, matched)
        else:
            device_len = host_len = reach(self.store.geometries, node, matched, host=False)
            if device_len < matched and self.store.has_host:
                host_len = reach(self.store.geometries, node, matched, host=True)
        return MatchResult(node, device_len, host_len, matched)

    def _find(self, view: npt.NDArray[np.int32], extra_key: ExtraKey) -> Found | None:
        node: Node | None = self.store.roots.get(extra_key)
        if node is None:
            check_extra_key(extra_key)
            return None
        page = self.page_size
        limit = len(view) - len(view) % page
        tokens = view.data
        at = 0
        while at < limit and node.children:
            child = node.children.get(tokens[at : at + page].tobytes())
            if child is None:
                break
            node, stop = child, child.end
            if stop > limit:
                stop = limit
            if not child.key.startswith(tokens[at:stop]):
                at += _common_length(child.key, view[at:stop], page)
                break
            at = stop
        return (node, at) if at else None

    # locks

    def lock(self, match: MatchResult, length: int | None = None, *, host: bool = False) -> TreeLock | None:
        """None when the match went stale.

        Raises:
            ValueError: `length` is no page boundary of the match.
            LockError: the match was made by another tree.
        """
        if length is None:
            length = match.host_len if host else match.device_len
        elif length % self.page_size or not 0 <= length <= match.matched_len:
            raise ValueError(f"cannot lock {length} tokens of a match of {match.matched_len} at page size {self.page_size}")
        store = self.store
        if not length:
            receipt = TreeLock(store, None, 0, [0] * len(store.geometries))
            self.receipts.add(receipt)
            return receipt
        node = match.handle
        if not isinstance(node, Node):
            raise LockError("the match was made by another cache; a handle is good only for the cache that gave it")
        above = node.parent
        if above is None:
            return None
        while above.end >= length:
            node = above
            above = node.parent
            assert above is not None
        while above.parent is not None:
            above = above.parent
        if not isinstance(above, Root) or above.owner is not store.owner:
            raise LockError("the match was made by another cache; a handle is good only for the cache that gave it")
        if self._only_closed:
            if node.cells[0].device is None and not self._lockable(node, length, [0], host):
                return None
            if node.end > length:
                node = store.split(node, length)
            stops = [self._pin_path(node, 0, 0)]
        else:
            needs = [geometry.first_needed(length) for geometry in store.geometries]
            if not self._lockable(node, length, needs, host):
                return None
            node = node if node.end == length else store.split(node, length)
            stops: list[int] = []
            for c, geometry in enumerate(store.geometries):
                stop = self._pin_path(node, c, needs[c])
                # not a state's node's start: the head of a later split holds neither the state nor the lock
                stops.append(length - 1 if geometry.at_node_end else stop)
        receipt = TreeLock(store, node, length, stops)
        self.receipts.add(receipt)
        return receipt

    def _lockable(self, node: Node, length: int, needs: Sequence[int], host: bool) -> bool:
        for c, geometry in enumerate(self.store.geometries):
            if geometry.at_node_end and node.end != length:
                return False
            need = needs[c]
            if need >= length:
                continue
            each = node
            while True:
                cell = each.cells[c]
                if cell.device is None and not (host and cell.host is not None):
                    return False
                if geometry.prefix_closed and cell.device is not None:
                    break  # device data is there all the way up
                assert each.parent is not None
                each = each.parent
                if each.end <= need:
                    break
        return True

    def _pin_path(self, node: Node, c: int, need: int) -> int:
        store = self.store
        clock = store.clock
        while node.end > need:
            cell = node.cells[c]
            if cell.locks:
                cell.locks += 1
            else:
                store.pin(cell, c)
            clock += 1
            cell.clock = clock
            assert node.parent is not None
            node = node.parent
        store.clock = clock
        return node.end

    def unlock(self, lock: Lock, component: str | None = None) -> None:
        """Raises LockError for a receipt, or a part of one, that is not held here; KeyError for an unknown component."""
        if lock not in self.receipts:
            raise LockError(f"{lock} is not held: it was released before, or another cache made it")
        assert isinstance(lock, TreeLock)
        stops = lock.stops
        if component is not None:
            c = self.store.components[component]
            if self.store.geometries[c].prefix_closed:
                raise LockError(f"{component!r} is released last, with the whole lock: call unlock_ref without a component")
            if stops[c] == RELEASED:
                raise LockError(f"{component!r} of {lock} was released before")
            self._unpin_path(lock, c)
            return
        self.receipts.remove(lock)
        closed = self.store.closed
        for c, stop in enumerate(stops):
            if stop != RELEASED and c != closed:
                self._unpin_path(lock, c)
        if closed >= 0:
            self._unpin_path(lock, closed)
        lock.node = None

    def _unpin_path(self, lock: TreeLock, c: int) -> None:
        stop, lock.stops[c] = lock.stops[c], RELEASED
        node = lock.node
        while node is not None and node.end > stop:
            cell = node.cells[c]
            if cell.locks > 1:
                cell.locks -= 1
            else:
                self.store.unpin(node, cell, c)
            node = node.parent

    # insert and evict

    def insert(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        """Raises TypeError or ValueError for what cannot be a key and ValueError for malformed values; nothing was taken."""
        return self.insert_path(ids, values, extra_key)[0]

    def insert_path(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> Inserted:
        """`insert`, and the node that ends at the result's length."""
        view, offers, found = self._read(ids, values, extra_key)
        if self._only_closed:
            return self._insertion.insert_closed(view, offers[0], found, extra_key)
        return self._insertion.insert(view, offers, found, extra_key)

    def insert_host(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        """`insert` for indices of the host tier; `length` is what device and host together can serve then. The segments of a
        component need not touch: what lies between them may be there already."""
        assert self.store.has_host
        view, offers, found = self._read(ids, values, extra_key, holes=True)
        return self._host_insertion.insert(view, offers, found, extra_key)[0]

    def _read(
        self, ids: TokenIds, values: Values, extra_key: ExtraKey, *, holes: bool = False
    ) -> tuple[npt.NDArray[np.int32], list[Offer | None], Found | None]:
        view = token_view(ids)
        if len(view) % self.page_size:
            raise ValueError(f"insert takes whole pages: {len(view)} tokens are no multiple of the page size {self.page_size}")
        offers = read_offers(values, self.store.components, self.store.geometries, self.page_size, len(view), holes=holes)
        found = self._find(view, extra_key)
        # what was matched equals tokens that were checked when they were inserted
        check_not_negative(view, 0 if found is None else found[1])
        return view, offers, found

    def evict(self, component: str, n: int, tier: Tier = "device") -> Reclaimed:
        """Take at least `n` indices of `component` from the least recently used, as far as unlocked data goes, trimming the last
        victim at a page boundary. The caller frees what is returned, of every component and tier."""
        c, level = self.store.components[component], TIERS[tier]
        reclaimed = Reclaimed()
        missing = index(n)
        while missing > 0:
            victim = self.victim(c, missing, level)
            if victim is None:
                break
            cell = victim.cells[c]
            data = cell.device if level == DEVICE else cell.host
            assert data is not None
            missing -= len(data) // INDEX_BYTES
            if level == DEVICE:
                self.store.demote(victim, c, reclaimed)
            else:
                reclaimed.add(HOST, c, self.store.take(victim, c, HOST))
                self.store.settle(victim, reclaimed)
        return reclaimed

    def victim(self, c: int, n: int, tier: int = DEVICE, copied: int = 0) -> Node | None:
        """One step of an eviction: the next victim, cut to at most `n` indices as `trimming` says. Take its data or
        `store.offer` it again. After anything that may evict, look whether it still has data."""
        node = self.store.heaps[tier][c].pop()
        return None if node is None else trimming.trim(self.store, node, c, n, tier, copied)

    def clear(self) -> Reclaimed | None:
        """Delete everything; None, and nothing is changed, while a lock lives."""
        if self.receipts:
            return None
        reclaimed = Reclaimed()
        self.store.clear(reclaimed)
        return reclaimed


def _common_length(edge: bytes, tokens: npt.NDArray[np.int32], page: int) -> int:
    """How many tokens an edge and a prompt, no longer than it, have in common; whole pages, and at least one token differs."""
    same = int((np.frombuffer(edge, dtype=np.int32, count=len(tokens)) != tokens).argmax())
    return same - same % page
