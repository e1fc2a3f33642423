"""L2 -> L1: what a load must bring, where it lands, and who waits for it.

The host part of a prefix is locked while it loads, so its source stays; the source is captured in the call. Loads of one node
join: the second waits for the first. A load is committed in the order of the path, and only under data: full attention stays
closed.
"""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.results import Indices
from kvcache_radix.node import INDEX_BYTES, Node
from kvcache_radix.reclaimed import Reclaimed
from kvcache_radix.store import DEVICE, NodeStore
from kvcache_unified_hicache.operation import Operation
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.requests import LoadRequest
from kvcache_unified_hicache.transfer import Agree, Transfer, TransferController


@final
class Loading:
    """One transfer under way and the operations it carries. `interest`: tickets that wait for it. `dropped`: nobody does any
    more, so that its end is no miss."""

    __slots__ = ("dropped", "interest", "operations", "transfer")

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.interest = 0
        self.dropped = False
        self.transfer: Transfer | None = None

    @property
    def done(self) -> bool:
        return all(operation.done for operation in self.operations)


@final
class Loads:
    """`free(c, pages)` gives device pages back; `release` frees what left the tree. `in_flight[c]` counts the destination pages
    of `running`."""

    def __init__(
        self,
        store: NodeStore,
        controller: TransferController,
        free: Callable[[int, Indices], None],
        release: Callable[[Reclaimed], None],
        counters: CacheCounters,
    ) -> None:
        self._store = store
        self._controller = controller
        self._free = free
        self._release = release
        self._counters = counters
        self._by_operation: dict[object, Loading] = {}
        self.running: set[Operation] = set()
        self.in_flight = [0] * len(store.geometries)

    def lacking(self, node: Node, c: int) -> int:
        """Indices of `c` that the host alone has of the node, and no load under way brings."""
        cell = node.cells[c]
        if cell.device is not None or cell.host is None or cell.operation in self._by_operation:
            return 0
        return len(cell.host) // INDEX_BYTES

    def needs(self, end: Node, length: int, c: int) -> tuple[list[Node], list[Loading]]:
        """Nodes of the path to `end` whose host data of `c` a prefix of `length` needs on the device, from the root downwards,
        and the loads already under way for others of them."""
        missing: list[Node] = []
        joined: dict[Loading, None] = {}
        need = self._store.geometries[c].first_needed(length)
        node: Node | None = end
        while node is not None and node.parent is not None and node.end > need:
            cell = node.cells[c]
            if cell.device is None:
                loading = self._by_operation.get(cell.operation)
                if loading is None:
                    missing.append(node)
                else:
                    joined[loading] = None
            node = node.parent
        missing.reverse()
        return missing, list(joined)

    def start(self, c: int, requests: Sequence[LoadRequest]) -> Loading:
        """Load the host data of `requests` (from the root downwards) into the pages they name, as one transfer.

        Raises what the controller raises when the source cannot be captured; nothing is under way then, and the pages are the
        caller's.
        """
        geometry, page = self._store.geometries[c], self._store.page_size
        sources: list[bytes] = []
        for node, _ in requests:
            host = node.cells[c].host
            assert host is not None, "a locked host node keeps its data"
            sources.append(host)
        source = np.frombuffer(b"".join(sources), np.int32)
        destination = np.concatenate([indices for _, indices in requests])
        operations = [Operation(node, c, geometry, page, indices) for node, indices in requests]
        loading = Loading(operations)
        self.in_flight[c] += len(destination)
        self.running.update(operations)
        self._by_operation.update(dict.fromkeys(operations, loading))
        try:
            loading.transfer = self._controller.load(destination, source, geometry.name, lambda ok: self._commit(loading, ok))
        except BaseException:
            for operation in operations:
                self._end(operation)
                # Nothing else becomes of the nodes: they are locked, and keep what they have in the host.
                for _ in operation.finish():
                    pass
            raise
        return loading

    def withdraw(self, loading: Loading) -> None:
        """Drop what was started in the same step, before anything could be dispatched; its pages are free then. For a load that
        another rank could not start: every rank drops what it has of it, so nobody is asked."""
        assert loading.transfer is not None
        loading.dropped = True
        dropped = loading.transfer.cancel()
        assert dropped, "nothing is dispatched while a load is planned"

    def leave(self, loading: Loading, agree: Agree) -> None:
        """A ticket lost interest. What nobody waits for and was not dispatched is dropped, and its destination freed."""
        loading.interest -= 1
        if not loading.interest and not loading.done and loading.transfer is not None:
            # When a source was assembled differs between ranks, and so may what was dispatched: all drop it, or none.
            [early] = agree([int(not loading.transfer.dispatched)])
            if early:
                loading.dropped = True
                loading.transfer.cancel()

    def _end(self, operation: Operation) -> None:
        self.running.remove(operation)
        del self._by_operation[operation]
        self.in_flight[operation.c] -= len(operation.destination)

    def _commit(self, loading: Loading, ok: bool) -> None:
        store, reclaimed = self._store, Reclaimed()
        if not ok and not loading.dropped:
            self._counters.misses[Reasons.LOAD_FAILED] += 1
        for operation in loading.operations:
            c = operation.c
            self._end(operation)
            landed: list[slice] = []
            for node, cell, part in operation.finish():
                assert node.parent is not None
                closed = not store.geometries[c].prefix_closed or node.parent.cells[c].device is not None
                if ok and closed and cell.device is None:
                    store.put(node, c, operation.destination[part].tobytes(), DEVICE)
                    store.offer(node, c)
                    landed.append(part)
                    self._counters.host_loaded_tokens += 1 if store.geometries[c].at_node_end else node.end - node.start
                elif cell.empty:
                    # Cancelled or failed, and the host copy went meanwhile.
                    store.settle(node, reclaimed)
            self._free(c, operation.rest(landed))
        self._release(reclaimed)
