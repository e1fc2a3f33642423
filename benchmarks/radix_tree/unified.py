"""Our worker for unified_radix_cache: the same work as `radix_tree.ours`, with L2 on or off, and prints one line of JSON.

python -m radix_tree.unified operations|eviction|profile --l2 off|insert|evict --components full|hybrid

What is timed is the cache: pages are 16 bytes that nobody writes, and copies to L2 are committed by a stand-in, in `poll`,
outside what is timed, as an engine's step does it between two requests.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.contracts.pools import Allocator, Buffers, PageArray, Pages
from kvcache_core.contracts.results import Indices, MatchResult, Values
from kvcache_core.deps import CacheDeps
from kvcache_core.transfer_queue import TransferQueue
from radix_tree import profiles, workload
from radix_tree.layouts import LAYOUTS, Layout
from radix_tree.ours import CountingAllocator, NoPoolSet

BackupOn = Literal["insert", "evict"]
PAGE_BYTES = 16
HOST_PAGES = 1_200_000


class TinyPool:
    """A device pool whose pages take almost no memory in L2, and are never moved."""

    identity = b"tiny"

    def host_struct(self) -> Pages:
        sharding = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        return jax.ShapeDtypeStruct((1, PAGE_BYTES), np.uint8, sharding=sharding)

    def page_arrays(self) -> tuple[PageArray, ...]:
        return (PageArray("bytes", "uint8", (PAGE_BYTES,)),)

    def gather(self, buffers: Buffers, indices: Indices) -> Pages:
        raise NotImplementedError

    def scatter(self, buffers: Buffers, indices: Indices, pages: Pages) -> Buffers:
        raise NotImplementedError


class Committed:
    """The future of a copy that the next `poll` commits."""

    done = False

    def cancel(self) -> bool:
        return False


class CommitAtPoll:
    """Stands in for the controller: slots come from the real host pool, and nothing is copied."""

    def __init__(self, parts: Any) -> None:
        self._pools = parts.host_pools
        self._evicted = parts.evict_callback
        self._waiting: list[Callable[[bool], None]] = []

    def has_room(self, component: str, n: int) -> bool:
        return True

    def reserve(self, component: str, n: int) -> Indices | None:
        pool = self._pools[component]
        slots = pool.alloc(n)
        if slots is None:
            self._evicted(component, pool.evict(n - pool.n_free))
            slots = pool.alloc(n)
        return slots

    def write(self, host_indices: Indices, device_indices: Indices, component: str, on_commit: Callable[[bool], None]) -> Any:
        self._waiting.append(on_commit)
        return Committed()

    def load(self, device_indices: Indices, host_indices: Indices, component: str, on_commit: Callable[[bool], None]) -> Any:
        raise NotImplementedError

    def poll(self) -> int:
        waiting, self._waiting = self._waiting, []
        for commit in waiting:
            commit(True)
        return len(waiting)

    def close(self) -> None:
        pass


def build(layout: Layout, allocators: Mapping[str, Allocator], backup_on: BackupOn | None) -> BasePrefixCache:
    """unified_radix_cache for a model of `layout`, at page size 16; without L2 for None."""
    pools = {name: TinyPool() for name in layout.names}
    deps = CacheDeps(
        model=ModelSpec("benchmark", "1", layout.model_class, layout.specs),
        page_size=workload.PAGE,
        allocators=allocators,
        pools=pools,
        pool_set=NoPoolSet(),
        queue=TransferQueue(pools),
        controller=CommitAtPoll,
    )
    hicache = None
    if backup_on is not None:
        host_bytes = len(pools) * HOST_PAGES * PAGE_BYTES
        hicache = HiCacheConfig(host_bytes=host_bytes, backup_on=backup_on, persist_on="never")
    return build_kv_cache(CacheConfig(cache_type="unified_radix_cache", page_size=workload.PAGE, hicache=hicache), deps)


class UnifiedTree:
    """`workload.Tree` over unified_radix_cache. What is not timed (`values`, `matched`) commits copies, like a step."""

    def __init__(self, layout: Layout, backup_on: BackupOn | None) -> None:
        self._layout = layout
        self._others = layout.names[1:]
        self._allocators = {name: CountingAllocator() for name in layout.names}
        self._cache = build(layout, self._allocators, backup_on)

    def tokens(self, ids: workload.Ids) -> workload.Ids:
        return ids

    def values(self, n_tokens: int) -> Values:
        self._cache.poll()
        return self._layout.values(n_tokens, self._allocators)

    def insert(self, tokens: workload.Ids, values: Values) -> None:
        self._cache.insert(tokens, values)

    def match(self, tokens: workload.Ids) -> MatchResult:
        return self._cache.match_prefix(tokens)

    def matched(self, match: MatchResult) -> int:
        self._cache.poll()
        return match.device_len

    def hold(self, match: MatchResult) -> None:
        lock = self._cache.lock_ref(match)
        assert lock is not None
        self._cache.unlock_ref(lock)

    def row(self, tokens: workload.Ids) -> int:
        """The rows of every component; the length is that of full attention."""
        lock: Lock | None = self._cache.lock_ref(self._cache.match_prefix(tokens))
        assert lock is not None
        indices = lock.segment("full").indices
        for name in self._others:
            lock.segment(name)
        self._cache.unlock_ref(lock)
        return len(indices) * workload.PAGE

    def evict(self, n_tokens: int) -> int:
        """Of full attention, which takes along what the others have there."""
        return self._cache.evict("full", n_tokens // workload.PAGE) * workload.PAGE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["operations", "eviction", "profile"])
    parser.add_argument("--l2", choices=["off", "insert", "evict"], default="insert")
    parser.add_argument("--components", choices=list(LAYOUTS), default="full")
    parser.add_argument("--clock", choices=list(workload.CLOCKS), default="cpu")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--leaves", type=int, default=10_000)
    parser.add_argument("--what", choices=["insert", "row", "long", "evict"], default="insert")
    args = parser.parse_args()
    backup_on: BackupOn | None = None if args.l2 == "off" else args.l2

    def new_tree() -> UnifiedTree:
        return UnifiedTree(LAYOUTS[args.components], backup_on)

    result: Any
    if args.part == "operations":
        result = workload.operations(new_tree, args.clock, args.n)
    elif args.part == "eviction":
        result = workload.eviction(new_tree, args.clock, args.leaves)
    else:
        look = {"insert": profiles.inserts, "row": profiles.rows, "long": profiles.long_matches, "evict": profiles.evictions}
        result = look[args.what](new_tree())
    print(json.dumps(result))


if __name__ == "__main__":
    main()
