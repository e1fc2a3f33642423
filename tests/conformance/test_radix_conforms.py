"""RadixCache passes the kit as a stranger's cache would: built by its name, used through the contract."""

import pytest

from kvcache_conformance.prefix_cache_machine import not_reached, run_machine
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_core import CacheConfig, build_kv_cache


class TestRadixCache(BasePrefixCacheTests):
    def make_cache(self, host):
        return build_kv_cache(CacheConfig(cache_type="radix_cache", page_size=host.page_size), host.deps())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_machine_finds_nothing(seed):
    assert not not_reached(run_machine(TestRadixCache().world, examples=100, steps=30, seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_long_runs_of_the_machine(seed):
    assert not not_reached(run_machine(TestRadixCache().world, examples=1_000, steps=50, seed=seed), at_least=100)
