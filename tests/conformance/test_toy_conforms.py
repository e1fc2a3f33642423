"""The kit passes on the simplest correct cache, for every set of components: what it asks can be done."""

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_conformance.toy_cache import ToyCache


class TestToyFull(BasePrefixCacheTests):
    def make_cache(self, host):
        return ToyCache(host.page_size, host.geometries, host.allocators)


class TestToyWindow(TestToyFull):
    components = (SWA,)


class TestToyState(TestToyFull):
    components = (RECURRENT,)


class TestToyFullAndWindow(TestToyFull):
    components = (FULL, SWA)


class TestToyFullAndState(TestToyFull):
    components = (FULL, RECURRENT)


class TestToyWindowAndState(TestToyFull):
    components = (SWA, RECURRENT)


class TestToyAllComponents(TestToyFull):
    components = (FULL, SWA, RECURRENT)
