"""Our worker: measures radix_cache, built as a host builds it, and prints one line of JSON.

python -m radix_tree.ours operations|eviction|hits|memory|trace|profile|versions
"""

import argparse
import gc
import importlib.metadata
import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.contracts.pools import Allocator, Buffers, PageArray, Pages
from kvcache_core.contracts.results import Indices, MatchResult, Values, full
from kvcache_core.deps import CacheDeps
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.pools.page_allocator import PageAllocator
from radix_tree import profiles, trace, workload
from radix_tree.memory import resident

BLOCKS = 20_000
"""The pool that serves the trace, in pages; the peer's script is given as many."""


class CountingAllocator:
    """Counts, as the stand-in that the peer's tree is measured with does: what is timed is the tree."""

    total = 2**31 - 1

    def __init__(self) -> None:
        self._next = 1
        self.n_free = 0

    def alloc(self, n: int) -> Indices | None:
        self._next += n
        return np.arange(self._next - n, self._next, dtype=np.int32)

    def free(self, indices: Indices) -> None:
        self.n_free += len(indices)


class NoPool:
    """A device pool without pages: radix_cache moves none."""

    identity = b"none"

    def host_struct(self) -> Pages:
        raise NotImplementedError

    def page_arrays(self) -> tuple[PageArray, ...]:
        raise NotImplementedError

    def gather(self, buffers: Buffers, indices: Indices) -> Pages:
        raise NotImplementedError

    def scatter(self, buffers: Buffers, indices: Indices, pages: Pages) -> Buffers:
        raise NotImplementedError


class NoPoolSet:
    """The gate in front of no buffers."""

    def take(self) -> dict[str, Buffers]:
        return {}

    def give(self, buffers: Any) -> None:
        pass


def build(allocator: Allocator) -> BasePrefixCache:
    """radix_cache for a full-attention model, at page size 16."""
    pools = {"full": NoPool()}
    deps = CacheDeps(
        model=ModelSpec("benchmark", "1", "full_attention"),
        page_size=workload.PAGE,
        allocators={"full": allocator},
        pools=pools,
        pool_set=NoPoolSet(),
        queue=TransferQueue(pools),
    )
    return build_kv_cache(CacheConfig(cache_type="radix_cache", page_size=workload.PAGE), deps)


class OurTree:
    """`workload.Tree` over radix_cache."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._cache = build(allocator)

    def tokens(self, ids: workload.Ids) -> workload.Ids:
        return ids

    def values(self, n_tokens: int) -> Values:
        indices = self._allocator.alloc(n_tokens // workload.PAGE)
        assert indices is not None
        return full(indices, workload.PAGE)

    def insert(self, tokens: workload.Ids, values: Values) -> None:
        self._cache.insert(tokens, values)

    def match(self, tokens: workload.Ids) -> MatchResult:
        return self._cache.match_prefix(tokens)

    def matched(self, match: MatchResult) -> int:
        return match.device_len

    def hold(self, match: MatchResult) -> None:
        lock = self._cache.lock_ref(match)
        assert lock is not None
        self._cache.unlock_ref(lock)

    def row(self, tokens: workload.Ids) -> int:
        lock: Lock | None = self._cache.lock_ref(self._cache.match_prefix(tokens))
        assert lock is not None
        indices = lock.segment("full").indices
        self._cache.unlock_ref(lock)
        return len(indices) * workload.PAGE

    def evict(self, n_tokens: int) -> int:
        return self._cache.evict("full", n_tokens // workload.PAGE) * workload.PAGE


def memory(length: int, tokens: int) -> dict[str, float]:
    """Bytes a cached token, by the interpreter's own count and by the growth of the process; the free list of the engine's
    allocator apart."""
    n = tokens // length
    before = resident()
    tree = OurTree(CountingAllocator())
    workload.fill(tree, length, n)
    grown = resident() - before
    del tree
    gc.collect()
    tracemalloc.start()
    tree = OurTree(CountingAllocator())
    workload.fill(tree, length, n)
    traced = tracemalloc.get_traced_memory()[0]
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    allocator = PageAllocator(n * length // workload.PAGE)
    free_list = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del tree, allocator
    total = n * length
    return {"traced": traced / total, "resident": grown / total, "free_list": free_list / total}


def profile(what: str, requests: Sequence[workload.Ids] | None) -> list[str]:
    """The lines of one profile; see `radix_tree.profiles`."""
    if what == "trace":
        assert requests is not None
        allocator = PageAllocator(BLOCKS)
        cache = build(allocator)
        return profiles.trace(lambda: trace.serve(cache, allocator, requests, workload.CLOCKS["cpu"]))
    if what == "evict":
        return profiles.evictions(OurTree(PageAllocator(1000 * workload.LEAF // workload.PAGE)))
    look: Callable[[OurTree], list[str]] = {"insert": profiles.inserts, "row": profiles.rows, "long": profiles.long_matches}[what]
    return look(OurTree(CountingAllocator()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["operations", "eviction", "hits", "memory", "trace", "profile", "versions"])
    parser.add_argument("--clock", choices=list(workload.CLOCKS), default="cpu")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--leaves", type=int, default=1000)
    parser.add_argument("--allocator", choices=["counting", "engine"], default="counting")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=16_777_216)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--what", choices=["insert", "row", "long", "evict", "trace"])
    args = parser.parse_args()
    result: Any
    if args.part == "operations":
        result = workload.operations(lambda: OurTree(CountingAllocator()), args.clock, args.n)
    elif args.part == "eviction":
        pages = (args.leaves + 1) * workload.LEAF // workload.PAGE
        allocator = CountingAllocator() if args.allocator == "counting" else PageAllocator(pages)
        result = workload.eviction(lambda: OurTree(allocator), args.clock, args.leaves)
    elif args.part == "hits":
        result = workload.eviction_after_hits(lambda: OurTree(CountingAllocator()), args.clock, args.leaves)
    elif args.part == "memory":
        result = memory(args.length, args.tokens)
    elif args.part == "trace":
        requests = trace.prompts(args.trace, args.requests)
        allocator = PageAllocator(BLOCKS)
        result = trace.serve(build(allocator), allocator, requests, workload.CLOCKS[args.clock])
    elif args.part == "profile":
        result = profile(args.what, trace.prompts(args.trace, args.requests) if args.trace else None)
    else:
        names = ("kvcache-core", "kvcache-radix", "kvcache-engine", "numpy")
        result = {name: importlib.metadata.version(name) for name in names}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
