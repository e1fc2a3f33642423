"""What `persist` does: bring whatever only L1 or L2 holds to the storage, waiting as long as it may.

Host data is handed over first. Then device data is copied to the host in the room of what is safe by then, and handed over as it
lands. This is the one place, beside a ticket's `wait`, where the owner thread blocks. It does not know why anything was left.
Storages and clocks differ among ranks; copies to the host, which may evict, do not: what they follow from is agreed each turn.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Final, NamedTuple, Protocol, final

from kvcache_core.contracts.results import PersistReport
from kvcache_radix.integrity import nodes_of
from kvcache_radix.node import Node
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.guarded_store import GuardedStore
from kvcache_unified_hicache.persists import Persists
from kvcache_unified_hicache.reasons import Reasons

PAUSE: Final = 0.002
"""Seconds to wait for the storage before copies between the tiers are looked at again."""

TRIES: Final = 2
"""How often the storage may fail to take the same data before it is given up."""


class CopyRoom(Protocol):
    """The part of the host tier that is asked before anything is evicted for a copy; `c` is a component's number."""

    def total(self, c: int) -> int: ...

    def obtainable(self, c: int) -> int: ...

    def has_room(self, c: int, n: int) -> bool:
        """Whether `n` more units may be copied now, as far as bytes in flight go."""
        ...


class _Item(NamedTuple):
    node: Node
    c: int


@final
class Leftovers:
    """One run over everything that is not stored when it is made. `turn`: one idle step, dispatch and poll."""

    def __init__(
        self,
        store: NodeStore,
        backups: Backups,
        persists: Persists,
        guard: GuardedStore,
        room: CopyRoom,
        turn: Callable[[], None],
        agree: Callable[[Sequence[int]], Sequence[int]],
    ) -> None:
        self._store = store
        self._backups = backups
        self._persists = persists
        self._guard = guard
        self._room = room
        self._turn = turn
        self._agree = agree
        self._going: set[_Item] = set()
        self._tries: Counter[_Item] = Counter()
        self._dropped: Counter[str] = Counter()
        self._refused: str | None = None
        self._over: set[_Item] = set()
        self._done: set[_Item] = set()
        self._todo = self._unstored()

    def persist(self, deadline: float) -> PersistReport:
        """For at most `deadline` seconds, or until nothing more can be done."""
        until, before = monotonic() + deadline, self._persists.stored_pages
        while True:
            self._turn()
            self._hand_over()
            available = not (self._persists.idle and self._refused == Reasons.UNAVAILABLE)
            flags = [self._refused is None, self._persists.idle, available, monotonic() < until]
            # A page that one rank lacks is of no use to the others: they stop together.
            safe, idle, available, early, *over = self._agree([*map(int, flags), *(int(i in self._over) for i in self._todo)])
            self._done.update(item for item, gone in zip(self._todo, over, strict=True) if gone)
            self._todo = [item for item in self._todo if item not in self._done]
            if safe:  # else device data waits: making room for it could cost host data that is not safe yet
                self._copy_all(bool(idle))
            if not self._todo or not early or not available:
                self._todo += self._cut_off()
            if not self._todo or not early:
                break
            if not available:
                for item in self._todo:
                    self._drop(item, Reasons.UNAVAILABLE)
                self._todo.clear()
                break
            pause = min(PAUSE, max(0.0, until - monotonic()))
            if self._persists.idle:
                sleep(pause)  # for copies between the tiers: the guard does not wait where it has nothing to wait for
            else:
                self._guard.wait(pause)
        left = sum(self._persists.units(*item) for item in self._todo if item.node.parent is not None and item not in self._over)
        state = self._guard.state
        message = f"the storage is {state.word}: {state.last_error}" if self._dropped and state.last_error else ""
        return PersistReport(self._persists.stored_pages - before, dict(self._dropped), left, message)

    def _unstored(self) -> list[_Item]:
        """Parents before children, what the host has first."""
        items: list[_Item] = []
        for node in self._pieces():
            for c, cell in enumerate(node.cells):
                known = cell.host is not None or cell.device is not None or cell.operation in self._backups.running
                if known:
                    items.append(_Item(node, c))
        stored = self._agree([int(self._persists.is_stored(*item)) for item in items])
        items = [item for item, there in zip(items, stored, strict=True) if not there]
        return sorted(items, key=lambda item: item.node.cells[item.c].host is None)

    def _cut_off(self) -> list[_Item]:
        """What the making of room cut off nodes of the list: it is a node of its own by now, and had no turn yet."""
        known = self._done.union(self._todo)
        return [item for item in self._unstored() if item not in known]

    def _pieces(self) -> list[Node]:
        """All nodes, cut so that each fits into L2. By sizes alone: every rank cuts alike."""
        store, pieces = self._store, list[Node]()
        paged = [c for c, geometry in enumerate(store.geometries) if not geometry.at_node_end]
        most = min((self._room.total(c) for c in paged), default=0) * store.page_size
        for node in list(nodes_of(store)):
            while paged and node.end - node.start > most:
                pieces.append(store.split(node, node.start + most))
            pieces.append(node)
        return pieces

    def _hand_over(self) -> None:
        """Give the storage what the host has, and see what is over. This rank's own affair: it changes no memory."""
        self._refused = None
        for item in self._todo:
            if item in self._over or self._is_over(item):
                self._over.add(item)
                continue
            node, c = item
            if self._refused is not None or node.cells[c].host is None:
                continue
            self._refused = self._persists.start(node, c)
            if self._persists.is_going(node, c):
                self._going.add(item)
            elif self._refused == Reasons.NOT_CAPTURED and self._failed(item, Reasons.NOT_CAPTURED):
                self._over.add(item)

    def _copy_all(self, idle: bool) -> None:
        """Copy to the host what only the device has, as far as there is room. `idle`: nothing is on its way to storage."""
        for place, item in enumerate(list(self._todo)):
            node, c = item
            cell = node.cells[c]
            if node.parent is None or cell.device is None or cell.host is not None or cell.operation in self._backups.running:
                continue
            if self._copy(node, c):
                continue
            if place == 0 and idle and not self._backups.running:
                self._todo.remove(item)
                self._done.add(item)
                self._drop(item, Reasons.NO_ROOM_IN_L2)
            return

    def _is_over(self, item: _Item) -> bool:
        """Stored, lost, or given up."""
        node, c = item
        if node.parent is None or self._persists.is_stored(node, c):
            return True
        if item in self._going and not self._persists.is_going(node, c):
            self._going.remove(item)
            if self._failed(item, Reasons.NOT_STORED):
                return True
        cell = node.cells[c]
        # Lost meanwhile, and counted where it was.
        return cell.host is None and cell.device is None and cell.operation not in self._backups.running

    def _failed(self, item: _Item, reason: str) -> bool:
        """Whether it is given up with this failure."""
        self._tries[item] += 1
        if self._tries[item] < TRIES:
            return False
        self._drop(item, reason)
        return True

    def _drop(self, item: _Item, reason: str) -> None:
        if item not in self._over:
            self._dropped[reason] += self._persists.units(*item)

    def _copy(self, node: Node, c: int) -> bool:
        n = self._persists.units(node, c)
        if self._room.obtainable(c) < n:
            return False
        [room] = self._agree([int(self._room.has_room(c, n))])
        return bool(room) and self._backups.start(node, c)
