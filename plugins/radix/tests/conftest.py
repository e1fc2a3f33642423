"""Caches to test, with pools of their own: RadixCache, and the bare tree behind the same contract for sets of components that
RadixCache does not serve. The window and state geometries are three lines each.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pytest

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.results import NO_INDICES, SizeInfo
from kvcache_core.errors import DoubleFreeError
from kvcache_radix.cache import RadixCache
from kvcache_radix.integrity import check_ownership, check_tree
from kvcache_radix.store import DEVICE
from kvcache_radix.tree import RadixTree

POISON = -1


class FullGeometry:
    name, prefix_closed, at_node_end = "full", True, False
    first_needed = staticmethod(lambda length: 0)


class WindowGeometry:
    name, prefix_closed, at_node_end = "swa", False, False

    def __init__(self, window):
        self.first_needed = lambda length: max(0, length - window + 1)


class StateGeometry:
    name, prefix_closed, at_node_end = "recurrent", False, True
    first_needed = staticmethod(lambda length: max(0, length - 1))


class PagePool:
    """Allocator and content of one component. A freed page is poisoned; `serial` tells two lives of one index apart."""

    def __init__(self, total):
        self.total = total
        self.content = np.full(total + 1, POISON, np.int64)
        self.serial = np.zeros(total + 1, np.int64)
        self._free = list(range(total, 0, -1))
        self._used = set()

    @property
    def n_free(self):
        return len(self._free)

    def alloc(self, n):
        if n > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(n)]
        self._used.update(taken)
        self.serial[taken] += 1
        return np.array(taken, np.int32)

    def free(self, indices):
        listed = indices.tolist()
        if len(set(listed)) != len(listed) or not self._used.issuperset(listed):
            raise DoubleFreeError(f"not in use: {sorted(set(listed) - self._used)}")
        self._used.difference_update(listed)
        self._free.extend(listed)
        self.content[listed] = POISON
        self.serial[listed] += 1


class TreeCache(BasePrefixCache):
    """The bare tree behind the contract, for any geometries, one tier."""

    def __init__(self, page_size, geometries, pools, edge_cap=None):
        super().__init__()
        self._pools = pools
        self._names = [g.name for g in geometries]
        self._tree = RadixTree(page_size, geometries, edge_cap=edge_cap)

    def match_prefix(self, ids, extra_key=()):
        return self._tree.match(ids, extra_key)

    def lock_ref(self, match, length=None, *, host=False):
        return self._tree.lock(match, length, host=host)

    def unlock_ref(self, lock, component=None):
        self._tree.unlock(lock, component)

    def insert(self, ids, values, extra_key=()):
        return self._tree.insert(ids, values, extra_key)

    def evict(self, component, n, tier="device"):
        reclaimed = self._tree.evict(component, n, tier)
        return self._give_back(reclaimed)[component]

    def size(self, component, tier="device"):
        c, pool = self._names.index(component), self._pools[component]
        evictable, protected = self._tree.store.evictable[DEVICE][c], self._tree.store.protected[DEVICE][c]
        owned = pool.total - pool.n_free - evictable - protected
        return SizeInfo(pool.n_free, evictable, protected, 0, owned, pool.total)

    def reset(self):
        reclaimed = self._tree.clear()
        if reclaimed is not None:
            self._give_back(reclaimed)
        return reclaimed is not None

    def check_integrity(self, request_owned: Mapping[str, np.ndarray] | None = None):
        check_tree(self._tree)
        for c, name in enumerate(self._names):
            owned = None if request_owned is None else request_owned.get(name, NO_INDICES)
            check_ownership(self._tree, DEVICE, c, self.size(name), owned)

    def _give_back(self, reclaimed):
        counts = {}
        for c, name in enumerate(self._names):
            indices = reclaimed.indices(DEVICE, c)
            counts[name] = len(indices)
            self._pools[name].free(indices)
        return counts


class Parts(NamedTuple):
    """What a test needs of a cache: `pools` and `geometries` by component name; `tree` for a look behind the contract."""

    cache: BasePrefixCache
    tree: RadixTree
    pools: dict
    geometries: dict


@pytest.fixture(scope="session")
def make_parts():
    """`components`: letters of F, S, R. `window` in tokens, `total` units in each pool. RadixCache serves "F" unless `bare`."""

    def build(components="F", page=4, total=64, window=8, edge_cap=None, bare=False):
        made = {"F": FullGeometry(), "S": WindowGeometry(window), "R": StateGeometry()}
        geometries = {made[letter].name: made[letter] for letter in components}
        pools = {name: PagePool(total) for name in geometries}
        if components == "F" and not bare:
            cache = RadixCache(page, pools["full"], edge_cap)
        else:
            cache = TreeCache(page, list(geometries.values()), pools, edge_cap)
        return Parts(cache, cache._tree, pools, geometries)

    return build


@pytest.fixture(scope="session")
def tokens():
    """int32 ids from numbers and ranges: tokens(1, 2, range(5))."""

    def build(*parts):
        flat = [x for part in parts for x in ([part] if isinstance(part, int) else part)]
        return np.array(flat, np.int32)

    return build
