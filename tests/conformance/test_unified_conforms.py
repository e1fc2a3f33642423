"""UnifiedRadixCache passes the kit with device memory alone, and with host memory behind it."""

import pytest

from kvcache_conformance.prefix_cache_machine import not_reached, run_machine
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_core import CacheConfig, build_kv_cache


class TestUnifiedRadixCache(BasePrefixCacheTests):
    def make_cache(self, host):
        return build_kv_cache(CacheConfig(cache_type="unified_radix_cache", page_size=host.page_size), host.deps())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_machine_finds_nothing(seed):
    assert not not_reached(run_machine(TestUnifiedRadixCache().world, examples=100, steps=30, seed=seed))
