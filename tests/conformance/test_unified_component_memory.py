"""FAULTS L8 in windows and states: 10,000 requests over several components, with aborts and early releases, leave the interpreter
with what it held before, and every pool free. `test_memory_stays_flat` has the same for full attention, in every cache."""

import gc
import tracemalloc

import numpy as np
import pytest

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core import CacheConfig, build_kv_cache
from kvcache_core.contracts.results import Segment
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree

PAGE = 4
PAGES = 48
WINDOWS = 5
SLACK = 24_000
"""Bytes by which the last windows may exceed the first ones: dictionaries and heaps keep some room."""


class Host:
    """Requests one after the other and two at a time. Each computes pages of every component, and a state after every page."""

    def __init__(self, components):
        self.model = HostModel(PAGE, components, PAGES)
        self.cache = build_kv_cache(CacheConfig(cache_type="unified_radix_cache", page_size=PAGE), self.model.deps())
        self.pools = self.model.allocators
        self.random = np.random.default_rng(8)
        self.bases = self.random.integers(0, 1000, (4, 40), np.int32)
        self.salt = 0
        self.released = 0

    def alloc(self, need):
        """All of `need`, by component, or nothing."""
        taken = {}
        for name, n in need.items():
            if self.pools[name].n_free < n:
                self.cache.evict(name, n - self.pools[name].n_free)
            taken[name] = self.pools[name].alloc(n)
        if all(indices is not None for indices in taken.values()):
            return taken
        self.free({name: indices for name, indices in taken.items() if indices is not None})
        return None

    def free(self, indices):
        for name, own in indices.items():
            self.pools[name].free(own)

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
            pages = -(-len(ids) // PAGE) - lock.length // PAGE
            own = self.alloc(dict.fromkeys(self.pools, pages))
            if other is not None:
                other()
            if own is not None:
                self.end(ids, key, lock, own)
        self.cache.unlock_ref(lock)

    def end(self, ids, key, lock, own):
        """Finished, or aborted with all that it computed; the window's part of the lock may have gone before."""
        whole = len(ids) // PAGE * PAGE
        if "swa" in own and lock.length and self.random.random() > 0.5:
            self.cache.unlock_ref(lock, "swa")
            self.released += 1
        if self.random.random() > 0.2 and whole > lock.length:
            offered = (whole - lock.length) // PAGE
            values = {name: [Segment(lock.length, whole, indices[:offered])] for name, indices in own.items()}
            if "recurrent" in own:
                ends = range(lock.length + PAGE, whole + 1, PAGE)
                values["recurrent"] = [Segment(at - PAGE, at, own["recurrent"][i : i + 1]) for i, at in enumerate(ends)]
            result = self.cache.insert(ids[:whole], values, key)
            own = {
                name: np.concatenate([result.duplicates[name], result.refused[name], indices[offered:]])
                for name, indices in own.items()
            }
        self.free(own)

    def run(self, n):
        for i in range(n // 2):
            self.request(self.request)
            if i % 100 == 0:
                self.forget()

    def forget(self):
        for pool in self.pools.values():
            pool.journal()


def check(components, requests):
    host = Host(components)
    host.run(500)
    tracemalloc.start()
    try:
        peaks, left = [], []
        for _ in range(WINDOWS):
            tracemalloc.reset_peak()
            host.run(requests // WINDOWS)
            peaks.append(tracemalloc.get_traced_memory()[1])
            assert host.cache.reset(), "a reference is left"
            assert all(pool.n_free == PAGES for pool in host.pools.values())
            host.forget()
            gc.collect()
            left.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(peaks[2:]) <= max(peaks[:2]) + SLACK, f"the peak grows: {peaks}"
    assert max(left[2:]) <= max(left[:2]) + SLACK, f"more is left each time: {left}"
    assert host.cache.counters.device_evicted_tokens > 10 * PAGES, "hardly anything was evicted"
    assert host.released > requests // 20 or "swa" not in host.pools


def a_short_run():
    """Enough for a leak of one small object a request."""
    check((FULL, SWA, RECURRENT), 2_000)


def test_a_short_run_over_components_stays_flat():
    a_short_run()


@pytest.mark.slow
@pytest.mark.parametrize("components", [(FULL, SWA, RECURRENT), (FULL, SWA), (SWA, RECURRENT)], ids=["FSR", "FS", "SR"])
def test_memory_stays_flat_over_components(components):
    check(components, 10_000)


class TestFaultsOfMemory(PlantedFaultTests):
    faults = (
        Fault(
            "L8: receipts are kept for ever",
            a_short_run,
            Replacement(RadixTree, "unlock", "lock.node = None", "self.__dict__.setdefault('old', []).append(lock)"),
        ),
        Fault("L8: roots of salts stay", a_short_run, Replacement(NodeStore, "drop", "del self.roots[top.extra_key]", "pass")),
    )
