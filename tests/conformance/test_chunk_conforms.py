"""ChunkCache passes the kit as a stranger's cache would: built by its name, used through the contract."""

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_core import CacheConfig, build_kv_cache


class TestChunkCache(BasePrefixCacheTests):
    reuses_prefixes = False

    def make_cache(self, host):
        return build_kv_cache(CacheConfig(cache_type="chunk_cache", page_size=host.page_size), host.deps())


class TestChunkCacheWithAllComponents(TestChunkCache):
    components = (FULL, SWA, RECURRENT)
