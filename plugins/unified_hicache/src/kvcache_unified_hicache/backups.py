"""L1 -> L2: which nodes are copied to the host, where the copies land, and what becomes of those that fail.

A copy is queued when a node is inserted (`backup_on: insert`) or when it is about to lose its device data (`backup_on: evict`,
and whatever was skipped before). Residency is claimed at the commit, never before. It does not move bytes: the controller does.
"""

from collections.abc import Callable
from typing import final

import numpy as np

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.results import Indices
from kvcache_radix.node import INDEX_BYTES, Node
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import HOST, NodeStore
from kvcache_unified_hicache.operation import Operation
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.transfer import TransferController

AllocHost = Callable[[int, int], Indices | None]
"""(component number, slots) -> slots owned by the caller; may evict from the host, and so drop nodes without device data."""


@final
class Backups:
    """`free(c, slots)` gives host slots back; `release` frees what left the tree. `landed(node, c)` is told of data that is in
    the host now. `in_flight[c]` counts the destination slots of `running`."""

    def __init__(
        self,
        store: NodeStore,
        controller: TransferController,
        alloc: AllocHost,
        free: Callable[[int, Indices], None],
        release: Callable[[Reclaimed], None],
        counters: CacheCounters,
        landed: Callable[[Node, int], None] | None = None,
    ) -> None:
        self._store = store
        self._controller = controller
        self._alloc = alloc
        self._free = free
        self._release = release
        self._counters = counters
        self._landed = landed
        self.running: set[Operation] = set()
        self.in_flight = [0] * len(store.geometries)

    def wanted(self, node: Node, c: int) -> bool:
        """The data is on the device alone, and no copy is on its way.

        A load may still be: it became useless when the device got the data otherwise, and its commit finds itself a stranger.
        """
        cell = node.cells[c]
        return node.parent is not None and cell.device is not None and cell.host is None and cell.operation not in self.running

    def wants(self, node: Node) -> bool:
        """Whether any component of the node is `wanted`."""
        for cell in node.cells:  # `wanted` written out: every insert comes here with all nodes of its path
            if cell.device is not None and cell.host is None and cell.operation not in self.running:
                return node.parent is not None
        return False

    def start(self, node: Node, c: int, *, last: bool = False) -> bool:
        """Queue the copy of one node's component. False where it is not wanted, or there is no room for it: then it is counted
        as given up with the `last` occasion, as postponed with every other. May evict from the host; look at other nodes again
        afterwards."""
        if not self.wanted(node, c):
            return False
        cell = node.cells[c]
        assert cell.device is not None
        name, n = self._store.geometries[c].name, len(cell.device) // INDEX_BYTES
        if not self._controller.has_room(name, n):
            return self._skip(Reasons.TOO_MANY_BYTES_TO_L2, node, c, last)
        slots = self._alloc(c, n)
        if slots is None:
            return self._skip(Reasons.NO_ROOM_IN_L2, node, c, last)
        # The allocation took only host data, and this node has device data: it is as it was.
        assert node.parent is not None and cell.host is None
        operation = Operation(node, c, self._store.geometries[c], self._store.page_size, slots)
        self.running.add(operation)
        self.in_flight[c] += n
        self._controller.write(slots, np.frombuffer(cell.device, np.int32), name, lambda ok: self._commit(operation, ok))
        return True

    def _commit(self, operation: Operation, ok: bool) -> None:
        store, c = self._store, operation.c
        self.running.remove(operation)
        self.in_flight[c] -= len(operation.destination)
        landed: list[slice] = []
        reclaimed = Reclaimed()
        for node, cell, part in operation.finish():
            if ok and cell.host is None:
                store.put(node, c, operation.destination[part].tobytes(), HOST)
                store.offer(node, c)
                landed.append(part)
                if self._landed is not None:
                    self._landed(node, c)
                self._counters.host_written_tokens += self._tokens(node, c)
            elif cell.empty:
                # The device copy went while this one was on its way, and it did not arrive: nothing is left (T12).
                self._counters.dropped[Reasons.COPY_FAILED] += self._tokens(node, c)
                store.settle(node, reclaimed)
        self._free(c, operation.rest(landed))
        self._release(reclaimed)

    def _skip(self, reason: str, node: Node, c: int, last: bool) -> bool:
        counter = self._counters.dropped if last else self._counters.postponed
        counter[reason] += self._tokens(node, c)
        return False

    def _tokens(self, node: Node, c: int) -> int:
        return 1 if self._store.geometries[c].at_node_end else node.end - node.start
