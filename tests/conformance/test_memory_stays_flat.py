"""FAULTS L8: 10,000 requests with aborts through a host without a model. What the interpreter holds afterwards is what it held
before, at its peak as well, and every page is free again.

The host is as small as the scheduler protocol allows, so that what grows is the cache's.
"""

import gc
import tracemalloc

import numpy as np
import pytest

from kvcache_conformance.geometries import FULL
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core import CacheConfig, build_kv_cache
from kvcache_core.contracts.results import Segment
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree

PAGE = 4
PAGES = 48
REQUESTS = 10_000
WINDOWS = 5
SLACK = 24_000
"""Bytes by which the last windows may exceed the first ones: dictionaries and heaps keep some room."""


class Host:
    """Requests one after the other and two at a time, with aborts before, after and between chunks."""

    def __init__(self, cache_type):
        self.model = HostModel(PAGE, (FULL,), PAGES)
        self.cache = build_kv_cache(CacheConfig(cache_type=cache_type, page_size=PAGE), self.model.deps())
        self.pages = self.model.allocators["full"]
        self.random = np.random.default_rng(8)
        self.bases = self.random.integers(0, 1000, (12, 40), np.int32)
        self.salt = 0

    def alloc(self, n):
        if self.pages.n_free < n:
            self.cache.evict("full", n - self.pages.n_free)
        return self.pages.alloc(n)

    def request(self, other=None):
        """One request, during which `other` runs as a whole. Every third one brings a salt of its own."""
        random = self.random
        base, cut = self.bases[random.integers(len(self.bases))], int(random.integers(0, 40))
        ids = np.concatenate([base[:cut], random.integers(0, 1000, random.integers(1, 12), np.int32)])
        self.salt += 1
        key = (b"salt", str(self.salt).encode()) if self.salt % 3 == 0 else ()
        lock = self.cache.lock_ref(self.cache.match_prefix(ids[:-1], key))
        assert lock is not None
        if random.random() > 0.1:
            own = self.alloc(-(-len(ids) // PAGE) - lock.length // PAGE)
            if other is not None:
                other()
            if own is not None:
                self.end(ids, key, lock, own)
        self.cache.unlock_ref(lock)

    def end(self, ids, key, lock, own):
        """Finished, or aborted with all that it computed."""
        whole = len(ids) // PAGE * PAGE
        rest = own
        if self.random.random() > 0.2 and whole > lock.length:
            offered = own[: (whole - lock.length) // PAGE]
            result = self.cache.insert(ids[:whole], {"full": [Segment(lock.length, whole, offered)]}, key)
            rest = np.concatenate([result.duplicates["full"], result.refused["full"], own[len(offered) :]])
        self.pages.free(rest)

    def run(self, n):
        for i in range(n // 2):
            self.request(self.request)
            if i % 100 == 0:
                self.pages.journal()


def peaks(host, requests=REQUESTS):
    """Peak of what is allocated in each window, in bytes, and what is left after the cache was emptied, first and last."""
    host.run(500)
    tracemalloc.start()
    try:
        found, left = [], []
        for _ in range(WINDOWS):
            tracemalloc.reset_peak()
            host.run(requests // WINDOWS)
            found.append(tracemalloc.get_traced_memory()[1])
            assert host.cache.reset(), "a reference is left"
            assert host.pages.n_free == PAGES
            host.pages.journal()
            gc.collect()
            left.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return found, left


def check(cache_type, requests=REQUESTS):
    host = Host(cache_type)
    found, left = peaks(host, requests)
    assert max(found[2:]) <= max(found[:2]) + SLACK, f"the peak grows: {found}"
    assert left[-1] <= left[0] + SLACK, f"more is left each time: {left}"
    if cache_type != "chunk_cache":
        assert host.cache.counters.device_evicted_tokens > 10 * PAGES * PAGE, "hardly anything was evicted"


@pytest.mark.parametrize("cache_type", ["chunk_cache", "radix_cache", "unified_radix_cache"])
def test_memory_stays_flat(cache_type):
    check(cache_type)


def a_short_run():
    """Enough for a leak of one small object a request."""
    check("radix_cache", 3_000)


def test_a_short_run_stays_flat_too():
    a_short_run()


class TestFaultsOfMemory(PlantedFaultTests):
    faults = (
        Fault(
            "L8: receipts are kept for ever",
            a_short_run,
            Replacement(RadixTree, "unlock", "lock.node = None", "self.__dict__.setdefault('old', []).append(lock)"),
        ),
        Fault("L8: roots of salts stay", a_short_run, Replacement(NodeStore, "drop", "del self.roots[top.extra_key]", "pass")),
    )
