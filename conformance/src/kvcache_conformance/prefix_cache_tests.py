"""The directed tests that every prefix cache passes, through the public contract alone. Subclass and say how a cache is made:

    class TestMyCache(BasePrefixCacheTests):
        def make_cache(self, host):
            return MyCache(host.page_size, host.allocators["full"])

`host` is a `HostModel`: strict allocators, device memory by value, `host.deps()` for a factory or the builder. The switches are
in `CacheKit`. What a test does through `CheckedCache` is predicted by a plain model and compared with device memory, so a test
that only stores and locks already looks for lost, foreign, stale and doubly owned pages.
"""

from kvcache_conformance.account_tests import AccountTests
from kvcache_conformance.eviction_tests import EvictionTests
from kvcache_conformance.insert_tests import InsertTests
from kvcache_conformance.key_tests import KeyTests
from kvcache_conformance.lock_tests import LockTests
from kvcache_conformance.protocol_tests import ProtocolTests


class BasePrefixCacheTests(KeyTests, LockTests, InsertTests, EvictionTests, AccountTests, ProtocolTests):
    """One device tier. A cache with tiers passes it with its tiers switched off, or too small to matter."""
