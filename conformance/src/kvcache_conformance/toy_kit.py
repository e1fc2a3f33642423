"""The kit around the toy cache or a mutant of it: for tests of the kit itself, and for the tests of a mutant one by one."""

from typing import final

import pytest

from kvcache_conformance.host_model import HostModel
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_conformance.toy_cache import ToyCache
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.errors import KVCacheError

NOTICED: tuple[type[BaseException], ...] = (AssertionError, KVCacheError, pytest.fail.Exception)
"""How the kit rejects a cache. Any other exception is a crash, and no proof that the kit looks at the right thing."""


@final
class ToyKit(BasePrefixCacheTests):
    """Every directed test is a method without arguments. `cache_type`: ToyCache or a mutant of it."""

    def __init__(self, cache_type: type[ToyCache]) -> None:
        self._cache_type = cache_type

    def make_cache(self, host: HostModel) -> BasePrefixCache:
        return self._cache_type(host.page_size, host.geometries, host.allocators)
