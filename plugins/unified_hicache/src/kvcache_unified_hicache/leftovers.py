"""What `persist` does: bring whatever only L1 or L2 holds to the storage, waiting as long as it may.

Host data is handed over first. Then device data is copied to the host in the room of what is safe by then, and handed over as it
lands. This is the one place, beside a ticket's `wait`, where the owner thread blocks. It does not know why anything was left.
"""

from collections import Counter, deque
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple, Protocol, final

from kvcache_core.contracts.results import PersistReport
from kvcache_radix.integrity import nodes_of
from kvcache_radix.node import Node
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.guarded_store import GuardedStore
from kvcache_unified_hicache.persists import FAILED, UNAVAILABLE, Persists

PAUSE: Final = 0.002
"""Seconds to wait for the storage before copies between the tiers are looked at again."""

TRIES: Final = 2
"""How often the storage may fail to take the same data before it is given up."""

NO_ROOM: Final = "no room in L2"


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
    ) -> None:
        self._store = store
        self._backups = backups
        self._persists = persists
        self._guard = guard
        self._room = room
        self._turn = turn
        self._going: set[_Item] = set()
        self._tries: Counter[_Item] = Counter()
        self._dropped: Counter[str] = Counter()
        self._refused: str | None = None
        self._todo = deque(self._unstored())

    def persist(self, deadline: float) -> PersistReport:
        """For at most `deadline` seconds, or until nothing more can be done."""
        until, before = monotonic() + deadline, self._persists.stored_pages
        while True:
            self._turn()
            self._push()
            if not self._todo or monotonic() >= until:
                break
            if self._persists.idle and self._refused == UNAVAILABLE:
                for item in self._todo:
                    self._dropped[UNAVAILABLE] += self._persists.units(*item)
                self._todo.clear()
                break
            self._guard.wait(min(PAUSE, max(0.0, until - monotonic())))
        left = sum(self._persists.units(*item) for item in self._todo if item.node.parent is not None)
        state = self._guard.state
        message = f"the storage is {state.word}: {state.last_error}" if self._dropped and state.last_error else ""
        return PersistReport(self._persists.stored_pages - before, dict(self._dropped), left, message)

    def _unstored(self) -> list[_Item]:
        """Parents before children, what the host has first."""
        items: list[_Item] = []
        for node in self._pieces():
            for c, cell in enumerate(node.cells):
                known = cell.host is not None or cell.device is not None or cell.operation in self._backups.running
                if known and not self._persists.is_stored(node, c):
                    items.append(_Item(node, c))
        return sorted(items, key=lambda item: item.node.cells[item.c].host is None)

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

    def _push(self) -> None:
        """Move everything on as far as it goes."""
        left: list[_Item] = []
        self._refused = None
        while self._todo:
            item = self._todo.popleft()
            if self._over(item):
                continue
            left.append(item)
            node, c = item
            cell = node.cells[c]
            if cell.host is not None:
                self._refused = self._persists.start(node, c)
                if self._persists.is_going(node, c):
                    self._going.add(item)
                if self._refused is not None:
                    break  # and device data waits: making room for it could cost host data that is not safe yet
            elif cell.operation not in self._backups.running and not self._copy(node, c) and len(left) == 1 and self._quiet():
                self._dropped[NO_ROOM] += self._persists.units(node, c)
                left.pop()
        self._todo.extendleft(reversed(left))

    def _over(self, item: _Item) -> bool:
        """Stored, lost, or given up."""
        node, c = item
        if node.parent is None or self._persists.is_stored(node, c):
            return True
        if item in self._going and not self._persists.is_going(node, c):
            self._going.remove(item)
            self._tries[item] += 1
            if self._tries[item] >= TRIES:
                self._dropped[FAILED] += self._persists.units(node, c)
                return True
        cell = node.cells[c]
        # Lost meanwhile, and counted where it was.
        return cell.host is None and cell.device is None and cell.operation not in self._backups.running

    def _copy(self, node: Node, c: int) -> bool:
        n = self._persists.units(node, c)
        return self._room.obtainable(c) >= n and self._room.has_room(c, n) and self._backups.start(node, c)

    def _quiet(self) -> bool:
        return self._persists.idle and not self._backups.running
