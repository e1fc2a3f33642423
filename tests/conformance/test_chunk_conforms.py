"""ChunkCache passes the kit as a stranger's cache would: built by its name, used through the contract."""

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.prefix_cache_machine import not_reached, run_machine
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_core import CacheConfig, build_kv_cache

WITHOUT_REUSE = ("miss", "short of pages", "decoded", "finished", "aborted in prefill", "aborted after prefill", "preempted")
"""The situations of the machine that need nothing kept."""


class TestChunkCache(BasePrefixCacheTests):
    reuses_prefixes = False

    def make_cache(self, host):
        return build_kv_cache(CacheConfig(cache_type="chunk_cache", page_size=host.page_size), host.deps())


class TestChunkCacheWithAllComponents(TestChunkCache):
    components = (FULL, SWA, RECURRENT)


def test_the_machine_finds_nothing():
    events = run_machine(TestChunkCacheWithAllComponents().world, examples=40, steps=30, seed=0)
    assert not not_reached(events, WITHOUT_REUSE)
    assert events["hit"] == 0
