"""RadixCache itself: an empty mapping says that requests own nothing, and a page without an owner is found."""

import numpy as np
import pytest

from kvcache_conformance.pool_model import StrictAllocator
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import MatchResult
from kvcache_core.errors import IntegrityError, LockError
from kvcache_radix.cache import RadixCache


def test_a_missing_component_means_that_requests_own_nothing():
    allocator = StrictAllocator(8)
    cache = RadixCache(4, allocator)
    cache.check_integrity({})
    allocator.alloc(3)
    cache.check_integrity()
    with pytest.raises(IntegrityError, match="I1"):
        cache.check_integrity({})


def test_a_handle_of_something_else_is_refused():
    cache = RadixCache(4, StrictAllocator(8))
    foreign = MatchResult(handle=object(), device_len=4, host_len=4, matched_len=4)
    with pytest.raises(LockError, match="another cache"):
        cache.lock_ref(foreign)
    lock = cache.lock_ref(cache.match_prefix(np.arange(4, dtype=np.int32)))
    assert isinstance(lock, Lock)
