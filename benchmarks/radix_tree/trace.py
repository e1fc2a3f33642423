"""Serving a recorded trace without a model: what a host asks its prefix cache and its allocator for each request.

The prompts are those of the peer's script: each block of the trace becomes one page of 16 tokens that follow from its id, and one
token more, which no cache may take. A request is admitted as the engine admits it (match, lock, compare with what is free and
evictable, evict, allocate, page-table row), inserted whole, and given back at once.
"""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import full
from radix_tree.workload import PAGE, Ids


def prompts(path: Path, n: int) -> list[Ids]:
    """The first `n` requests."""
    offsets = np.arange(PAGE, dtype=np.int32)
    made: list[Ids] = []
    with gzip.open(path, "rt") as lines:
        for _, line in zip(range(n), lines, strict=False):
            blocks = np.array(json.loads(line)["hash_ids"], dtype=np.int32)
            made.append(np.append((blocks[:, None] * PAGE + offsets).ravel(), np.int32(7)))
    return made


def serve(cache: BasePrefixCache, allocator: Allocator, requests: Sequence[Ids], tick: Callable[[], int]) -> dict[str, float]:
    """Microseconds a request by phase, and the share of tokens that hit. `allocator`: one page for each block of the peer's."""
    spent = dict.fromkeys(("match", "alloc", "insert", "free"), 0)
    hit = total = failed = 0
    for ids in requests:
        t0 = tick()
        lock = cache.lock_ref(cache.match_prefix(ids[:-1]))
        assert lock is not None
        t1 = tick()
        start = lock.length
        need = -(-(len(ids) - start) // PAGE)
        size = cache.size("full")
        if size.free + size.evictable < need:
            cache.unlock_ref(lock)
            failed += 1
            continue
        own = allocator.alloc(need)
        if own is None:
            cache.evict("full", need - size.free)
            own = allocator.alloc(need)
        assert own is not None
        row: npt.NDArray[np.int32] = np.concatenate([lock.segment("full").indices, own])
        t2 = tick()
        end = len(ids) - len(ids) % PAGE
        whole = (end - start) // PAGE
        result = cache.insert(ids[:end], full(own[:whole], PAGE, start))
        t3 = tick()
        allocator.free(np.concatenate([result.duplicates["full"], result.refused["full"], own[whole:]]))
        cache.unlock_ref(lock)
        t4 = tick()
        assert len(row) == -(-len(ids) // PAGE)
        for phase, taken in zip(spent, (t1 - t0, t2 - t1, t3 - t2, t4 - t3), strict=True):
            spent[phase] += taken
        hit += start
        total += len(ids)
    figures = {phase: taken / len(requests) / 1e3 for phase, taken in spent.items()}
    return figures | {"total": sum(figures.values()), "hit": hit / total, "failed": failed, "requests": len(requests)}
