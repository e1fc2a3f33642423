"""What goes down, and when: L1 -> L2 at an insert and before a demotion, L2 -> L3 as copies land and before host data goes.

It asks the components' hooks, and hands what they want to `Backups` and `Persists`. It knows which occasion is the last one for
some data; it does not know where copies land, or how bytes move.
"""

from collections.abc import Sequence
from typing import final

from kvcache_core.contracts.component import TreeComponent
from kvcache_radix.node import Node
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.requests import HookRequests
from kvcache_unified_hicache.storage_tier import StorageTier


@final
class CopiesDown:
    """`components`, `requests`: by component number. `closed`: the number of the prefix_closed component, -1 without one."""

    def __init__(
        self,
        components: Sequence[TreeComponent],
        requests: Sequence[HookRequests],
        closed: int,
        backups: Backups,
        storage: StorageTier | None,
    ) -> None:
        self._components = tuple(components)
        self._requests = tuple(requests)
        self._closed = closed
        self._backups = backups
        self._storage = storage

    def back_up_path(self, end: Node) -> None:
        """Queue a copy of whatever the prefix has on the device alone: what is new, and what was skipped before."""
        node, path = end, list[Node]()
        while node.parent is not None:
            path.append(node)
            node = node.parent
        # Of a prefix that goes on, nearly all nodes have their copies.
        nodes = [node for node in path if self._backups.wants(node)]
        for node in reversed(nodes):
            for component in self._components:
                component.write_through(node)
        self._take_backups()
        if self._storage is not None and self._storage.persist_on == "insert":
            for node in reversed(path):
                for c, cell in enumerate(node.cells):
                    if cell.host is not None:  # and it may have been refused when it landed
                        self.landed(node, c)

    def save(self, victim: Node, c: int) -> None:
        """Before `victim` loses component `c` on the device: queue a copy of all that goes with it."""
        for other, component in enumerate(self._components):
            if other == c or c == self._closed:
                component.write_through(victim)
        self._take_backups(victim)
        if self._storage is not None and c == self._closed:
            self._save_below(victim, c, self._storage)

    def landed(self, node: Node, c: int) -> None:
        """Host data that has just come, or was used again."""
        self._write_back(node, c, last=False)

    def leaves_host(self, node: Node, c: int, last: bool) -> None:
        """Host data that is about to go. What stays on the device (not `last`) will be copied to the host again, before it goes
        there."""
        self._write_back(node, c, last=last)

    def _take_backups(self, victim: Node | None = None) -> None:
        for c, requests in enumerate(self._requests):
            for node in requests.take_backups():
                self._backups.start(node, c, last=node is victim and not self._is_stored(node, c))

    def _is_stored(self, node: Node, c: int) -> bool:
        return self._storage is not None and self._storage.persists.is_stored(node, c)

    def _write_back(self, node: Node, c: int, *, last: bool) -> None:
        assert self._storage is not None
        self._components[c].write_back(node)
        for each in self._requests[c].take_persists():
            self._storage.persists.offer(each, c, last=last)

    def _save_below(self, victim: Node, c: int, storage: StorageTier) -> None:
        """A victim without any other copy takes what lies below it along, whose host data was worth keeping."""
        cell = victim.cells[c]
        if storage.persist_on == "never" or cell.host is not None or cell.operation is not None:
            return
        below = list((victim.children or {}).values())
        for node in below:
            below += (node.children or {}).values()
            for other, held in enumerate(node.cells):
                if held.host is not None:
                    # Given up or not, it is counted with the node that goes.
                    self._write_back(node, other, last=False)
