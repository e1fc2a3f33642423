"""ChunkCache keeps nothing and says so through the contract."""

import numpy as np
import pytest

from kvcache_chunk.cache import ChunkCache
from kvcache_core.contracts.locks import Refused
from kvcache_core.contracts.results import Segment, full
from kvcache_core.errors import IntegrityError, LockError


class CountingAllocator:
    def __init__(self, total, n_free):
        self.total = total
        self.n_free = n_free

    def alloc(self, n):
        raise AssertionError("a cache without data allocates nothing")

    def free(self, indices):
        raise AssertionError("the cache never frees a caller's index")


@pytest.fixture
def allocator():
    return CountingAllocator(total=10, n_free=10)


@pytest.fixture
def cache(allocator):
    return ChunkCache({"full": allocator, "swa": CountingAllocator(4, 4)}, page_size=4)


IDS = np.arange(8, dtype=np.int32)
PAGES = np.array([3, 4], np.int32)


def test_nothing_is_ever_matched(cache):
    cache.insert(IDS, full(PAGES, 4))
    match = cache.match_prefix(IDS)
    assert (match.device_len, match.host_len, match.matched_len) == (0, 0, 0)


def test_everything_offered_is_refused_and_stays_the_callers(cache):
    result = cache.insert(IDS, {"full": (Segment(0, 4, PAGES[:1]), Segment(4, 8, PAGES[1:])), "swa": ()})
    assert result.length == 0
    assert result.refused["full"].tolist() == [3, 4]
    assert result.refused["swa"].tolist() == []
    assert all(len(d) == 0 for d in result.duplicates.values())


def test_a_malformed_offer_is_raised(cache):
    with pytest.raises(ValueError, match="covers 2 pages"):
        cache.insert(IDS, {"full": (Segment(0, 8, np.array([1, 2, 3], np.int32)),)})
    with pytest.raises(ValueError, match="unknown component"):
        cache.insert(IDS, {"states": ()})
    with pytest.raises(TypeError):
        cache.insert(IDS.astype(np.int64), {})
    with pytest.raises(TypeError):
        cache.match_prefix(IDS, ("text",))


def test_locks_are_receipts_used_once(cache):
    lock = cache.lock_ref(cache.match_prefix(IDS))
    assert lock.length == 0
    assert len(lock.segment("full").indices) == 0
    with pytest.raises(KeyError):
        lock.segment("states")
    assert not cache.reset()
    cache.unlock_ref(lock, "swa")
    cache.unlock_ref(lock)
    with pytest.raises(LockError):
        cache.unlock_ref(lock)
    assert cache.reset()
    with pytest.raises(ValueError, match="never matches"):
        cache.lock_ref(cache.match_prefix(IDS), 4)


def test_a_lock_of_another_cache_is_refused(cache, allocator):
    other = ChunkCache({"full": allocator}, page_size=4)
    with pytest.raises(LockError):
        cache.unlock_ref(other.lock_ref(other.match_prefix(IDS)))


def test_accounting(cache, allocator):
    allocator.n_free = 7
    size = cache.size("full")
    assert tuple(size) == (7, 0, 0, 0, 3, 10)
    assert cache.evict("full", 3) == 0
    with pytest.raises(KeyError):
        cache.size("full", "host")
    with pytest.raises(KeyError):
        cache.evict("states", 1)
    cache.check_integrity()
    cache.check_integrity({"full": np.array([1, 2, 3], np.int32)})
    with pytest.raises(IntegrityError, match="is not 10"):
        cache.check_integrity({"full": np.array([1, 2], np.int32)})
    with pytest.raises(IntegrityError, match="twice"):
        cache.check_integrity({"full": np.array([1, 2, 2], np.int32)})


def test_it_has_no_other_tier(cache):
    match = cache.match_prefix(IDS)
    assert cache.load(match) is Refused.NO_TIER
    assert cache.prefetch(IDS) is Refused.NO_TIER
    assert cache.poll() == 0
    assert "nothing was written" in cache.persist(1.0).message
    cache.close()
    cache.close()
