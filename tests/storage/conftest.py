"""A host whose device memory is numpy and whose host memory is real, with files below it: every page is known by value."""

from dataclasses import dataclass, field, replace
from time import monotonic

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from kvcache_conformance.geometries import FULL
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.page_content import BYTES, LAYERS, page_content
from kvcache_conformance.pool_model import DONATED
from kvcache_core import CacheConfig, build_kv_cache
from kvcache_core.config.model import HiCacheConfig
from kvcache_core.contracts.locks import Refused, Ticket
from kvcache_core.contracts.pools import SKIP, PageArray
from kvcache_core.contracts.results import full

NO_WAIT = 30.0


class PinnedPool:
    """`NumpyPool` whose captured pages are arrays in pinned host memory, as a real pool's are."""

    def __init__(self, name):
        self._sharding = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        self.identity = f"{name}/uint8/{LAYERS}x{BYTES}".encode()

    def host_struct(self):
        return jax.ShapeDtypeStruct((1, LAYERS, BYTES), jnp.uint8, sharding=self._sharding)

    def page_arrays(self):
        return (PageArray("bytes", "uint8", (LAYERS, BYTES)),)

    def gather(self, buffers, indices):
        padded = np.zeros(1 << (len(indices) - 1).bit_length(), np.int32)
        padded[: len(indices)] = indices
        return jax.device_put(buffers[padded], self._sharding)

    def scatter(self, buffers, indices, pages):
        written = buffers.copy()
        rows = np.flatnonzero(indices != SKIP)
        written[indices[rows]] = np.asarray(pages)[rows]
        buffers.fill(DONATED)
        return written


@dataclass
class Served:
    """Tokens that were computed, and those that came from storage."""

    computed: int
    span: tuple[int, int] = (0, 0)


@dataclass
class Store:
    """One process: a cache with full attention over `folder`, requests one after another."""

    folder: object
    page_size: int = 4
    pages: int = 64
    hicache: dict = field(default_factory=dict)
    version: str = "1"

    def __post_init__(self):
        self.host = HostModel(self.page_size, (FULL,), self.pages, PinnedPool)
        deps = self.host.deps()
        deps = replace(deps, model=replace(deps.model, model_version=self.version))
        section = {"storage": {"kind": "file", "path": str(self.folder)}, "prefetch_threshold": 1, **self.hicache}
        hicache = HiCacheConfig.model_validate(section)
        self.cache = build_kv_cache(
            CacheConfig(cache_type="unified_radix_cache", page_size=self.page_size, hicache=hicache), deps
        )
        self.allocator = self.host.allocators["full"]

    def prefetch(self, tokens, extra_key=()):
        """Wait for what storage has; returns the span."""
        ticket = self.cache.prefetch(np.asarray(tokens[:-1], np.int32), extra_key)
        if isinstance(ticket, Refused):
            assert ticket is Refused.NOTHING_TO_DO
            return (0, 0)
        assert ticket.wait(NO_WAIT)
        return ticket.span

    def serve(self, tokens, extra_key=(), *, fetch=True):
        """Every page that is reused is read and compared; the rest is computed and offered."""
        ids, page = np.asarray(tokens, np.int32), self.page_size
        span = self.prefetch(tokens, extra_key) if fetch else (0, 0)
        match = self.cache.match_prefix(ids[:-1], extra_key)
        lock = None
        if match.host_len > match.device_len:
            ticket = self.cache.load(match)
            if isinstance(ticket, Ticket):
                assert ticket.wait(NO_WAIT)
                assert ticket.ok
                lock = ticket.lock
        if lock is None:
            lock = self.cache.lock_ref(match)
        assert lock is not None
        start, end = lock.length, len(ids) // page * page
        cached = lock.segment("full").indices
        right = [page_content(extra_key, "full", ids[:at].tobytes()) for at in range(page, start + 1, page)]
        assert np.array_equal(self.host.read("full", cached), np.reshape(right, (-1, LAYERS, BYTES)))
        pages = self.allocator.alloc((end - start) // page)
        if pages is None:
            self.cache.evict("full", (end - start) // page - self.allocator.n_free)
            pages = self.allocator.alloc((end - start) // page)
        assert pages is not None
        for at, index in zip(range(start + page, end + 1, page), pages, strict=True):
            self.host.write("full", int(index), page_content(extra_key, "full", ids[:at].tobytes()))
        result = self.cache.insert(ids[:end], full(pages, page, start), extra_key)
        for mine in (result.duplicates["full"], result.refused["full"]):
            self.allocator.free(mine)
        self.cache.unlock_ref(lock)
        self.turn()
        self.cache.check_integrity({"full": np.empty(0, np.int32)})
        return Served(len(ids) - start, span)

    def settle(self):
        """Until no copy between the tiers is on its way."""
        until = monotonic() + NO_WAIT
        while self.cache.size("full", "host").in_flight or self.cache.size("full").in_flight:
            assert monotonic() < until
            self.turn()

    def turn(self):
        self.host.idle()
        self.cache.poll()


@pytest.fixture
def start(tmp_path):
    """`start(**options)`: a process over the folder of this test. All are ended after the test."""
    started = []

    def make(**options):
        started.append(Store(tmp_path / "store", **options))
        return started[-1]

    yield make
    for store in started:
        store.cache.close()
