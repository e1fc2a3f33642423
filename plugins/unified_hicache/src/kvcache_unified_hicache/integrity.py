"""The invariants that transfers and storage add to those of the tree: I7, that what is in flight has one owner, and that pages
are named by their tokens. For tests, after every step."""

from collections.abc import Collection, Sequence

import numpy as np

from kvcache_core.contracts.results import NO_INDICES, Indices, SizeInfo
from kvcache_core.errors import IntegrityError
from kvcache_radix.integrity import check_ownership, nodes_of
from kvcache_radix.node import DIGEST_BYTES, Root
from kvcache_radix.store import HOST, NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.host_tier import HostTier
from kvcache_unified_hicache.operation import Operation
from kvcache_unified_hicache.storage.page_keys import PageKeys
from kvcache_unified_hicache.storage_tier import StorageTier


def destinations(running: Collection[Operation], c: int) -> Indices:
    """All indices of component `c` that transfers own."""
    return np.concatenate([NO_INDICES, *(operation.destination for operation in running if operation.c == c)])


def check_operations(store: NodeStore, running: Collection[Operation]) -> None:
    """I7: every transfer that a cell refers to is pending and knows the node. Raises IntegrityError."""
    pending = set(running)
    for node in nodes_of(store):
        for cell, geometry in zip(node.cells, store.geometries, strict=True):
            operation = cell.operation
            if operation is None:
                continue
            if operation not in pending:
                raise IntegrityError(f"I7: {geometry.name} of the node to {node.end} refers to a transfer that ended")
            if node not in next(o for o in pending if o is operation).nodes:
                raise IntegrityError(f"I7: the transfer of {geometry.name} to {node.end} does not know the node")


def check_host(tree: RadixTree, host: HostTier, storage: StorageTier | None, sizes: Sequence[SizeInfo]) -> None:
    """Each host slot has one owner, host pools agree with themselves, and pages are named by their tokens. `sizes`: of the host
    tier, by component number. Raises IntegrityError."""
    for c, size in enumerate(sizes):
        fetched = NO_INDICES if storage is None else storage.fetches.owned(c)
        coming = np.concatenate([destinations(host.backups.running, c), fetched])
        check_ownership(tree, HOST, c, size, NO_INDICES, coming)
    host.check_integrity()
    if storage is not None:
        check_digests(tree.store, storage.keys)


def check_digests(store: NodeStore, keys: PageKeys) -> None:
    """Digests that are kept in nodes are those of the path's tokens and extra key. Raises IntegrityError."""
    for node in nodes_of(store):
        above = node.parent
        if node.digests is None or above is None:
            continue
        last = keys.root(above.extra_key) if isinstance(above, Root) else (above.digests or b"")[-DIGEST_BYTES:]
        if not last or node.digests != keys.chain(last, node.key):
            raise IntegrityError(
                f"digests of the node to {node.end} are not those of its tokens, or it has some and its parent none"
            )
