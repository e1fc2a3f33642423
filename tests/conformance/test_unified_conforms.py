"""UnifiedRadixCache passes the kit with device memory alone, for every set of components, and with host memory behind it.

With full attention it is built by its name, as a plugin. The other components' geometries stand in for their packages.
"""

import pytest

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.prefix_cache_machine import EVENTS, not_reached, run_machine
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core import CacheConfig, build_kv_cache


class TestUnifiedRadixCache(BasePrefixCacheTests):
    def make_cache(self, host):
        return build_kv_cache(CacheConfig(cache_type="unified_radix_cache", page_size=host.page_size), host.deps())


class TestUnifiedFullAndWindow(BasePrefixCacheTests):
    components = (FULL, SWA)

    @pytest.fixture(autouse=True)
    def builders(self, unified, tiered):
        self.unified, self.tiered = unified, tiered

    def make_cache(self, host):
        return self.unified(host)


class TestUnifiedFullAndState(TestUnifiedFullAndWindow):
    components = (FULL, RECURRENT)


class TestUnifiedWindowAndState(TestUnifiedFullAndWindow):
    components = (SWA, RECURRENT)


class TestUnifiedAllComponents(TestUnifiedFullAndWindow):
    components = (FULL, SWA, RECURRENT)


class TestUnifiedWithHost(TestUnifiedFullAndWindow):
    """Copies to the host are queued all the time, and what is predicted and compared covers both tiers."""

    components = (FULL,)
    tiers = True
    backup_on = "insert"

    def world(self, page_size=4, total=16):
        return self.tiered(TierSizes(page_size, total, 2 * total, self.backup_on), self.components).checked


class TestUnifiedWithHostOnEviction(TestUnifiedWithHost):
    backup_on = "evict"


class TestUnifiedAllComponentsWithHost(TestUnifiedWithHost):
    components = (FULL, SWA, RECURRENT)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_machine_finds_nothing(seed):
    assert not not_reached(run_machine(TestUnifiedRadixCache().world, examples=100, steps=30, seed=seed))


def test_the_machine_finds_nothing_with_all_components(unified):
    kit = TestUnifiedAllComponents()
    kit.unified = unified
    assert not not_reached(run_machine(kit.world, examples=100, steps=30, seed=0), [*EVENTS, "released early"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kit", [TestUnifiedFullAndWindow, TestUnifiedFullAndState, TestUnifiedWindowAndState, TestUnifiedAllComponents]
)
def test_long_runs_of_the_machine(kit, unified):
    world = kit()
    world.unified = unified
    run_machine(world.world, examples=1_000, steps=50, seed=1)
