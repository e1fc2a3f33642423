"""The way of an sgl-jax request through each of our caches: the request, the page table and the pool after each call.

The host is a stand-in with sgl-jax's shapes; the caches are the real ones, chosen by a configuration.
"""

import random

import numpy as np
import pytest

from kvcache_conformance.sgl_jax_host import HostRequest, Rows, SlotPool
from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import IntegrityError, LockError
from kvcache_core.transfer_queue import TransferQueue
from kvcache_sgl_jax.rank_allocator import RankAllocator
from kvcache_sgl_jax.rank_cache import FULL, RankCache

CONTEXT = 64
REUSING = ["radix_cache", "unified_radix_cache"]


class NoCopies:
    """A pool without L2: nothing is ever copied."""

    identity = b"none"


class IdleGate:
    def take(self):
        return {}

    def give(self, buffers):
        pass

    def flush(self):
        pass


class Host:
    """Does with requests what sgl-jax's scheduler does with its cache and its allocator, in its order."""

    def __init__(self, cache_type: str, pages: int = 40, page_size: int = 1) -> None:
        self.page_size = page_size
        self.pool = SlotPool(pages, page_size)
        self.rows = Rows(8, CONTEXT)
        allocator = RankAllocator(self.pool, 0)
        queue = TransferQueue({FULL: NoCopies()})
        deps = CacheDeps(
            model=ModelSpec("tiny", "", "full_attention"),
            page_size=page_size,
            allocators={FULL: allocator},
            pools={FULL: NoCopies()},
            pool_set=IdleGate(),
            queue=queue,
        )
        self.cache = build_kv_cache(CacheConfig(cache_type=cache_type, page_size=page_size), deps)
        self.rank = RankCache(self.cache, 0, allocator, self.rows, IdleGate())
        self._unused_rows = list(range(8))

    def admit(self, ids, extra_key=None, chunk=None):
        """Match, lock, and compute the first `chunk` tokens (default: all) into new slots."""
        found = self.rank.match(ids[:-1], extra_key)
        found.held.lock()
        request = HostRequest(list(ids), self._unused_rows.pop(), found.held, extra_key, prefix_indices=found.slots)
        request.last_matched_prefix_len = len(found.slots)
        self.extend(request, len(ids) if chunk is None else min(len(ids), len(found.slots) + chunk))
        return request

    def extend(self, request, end):
        start = len(request.prefix_indices)
        request.fill_ids = (request.origin_input_ids + request.output_ids)[:end]
        row = self.rows.req_to_token[request.req_pool_idx]
        row[:start] = request.prefix_indices
        request.cache_protected_len = request.last_matched_prefix_len
        self._compute(request, start, end)

    def decode(self, request, token):
        request.output_ids.append(token)
        self._compute(request, request.committed, request.committed + 1)

    def end(self, request, *, insert=True):
        self.rank.finish(request, insert=insert)
        self._unused_rows.append(request.req_pool_idx)

    def check(self, *requests):
        """Every page has one owner; what a request owns is what its row holds beyond its hold."""
        owned = [np.empty(0, np.int32)]
        for request in requests:
            row = self.rows.req_to_token[request.req_pool_idx]
            owned.append(np.unique(row[request.last_node.length : request.committed] // self.page_size))
        self.cache.check_integrity({FULL: np.concatenate(owned)})

    def idle(self):
        """sgl-jax's idle check: raises when a page is missing."""
        self.check()
        assert self.pool.available_size() + self.rank.evictable + self.rank.protected == self.pool.size_per_rank
        assert self.rank.protected == 0

    def _compute(self, request, start, end):
        row = self.rows.req_to_token[request.req_pool_idx]
        first = -(-start // self.page_size) * self.page_size
        row[start : min(first, end)] = [row[start - 1] + 1 + i for i in range(min(first, end) - start)]
        need = max(0, -(-(end - first) // self.page_size) * self.page_size)
        if self.pool.available_size() < need:
            self.rank.evict(need)
        slots = self.pool.alloc(need)
        assert slots is not None, "out of memory"
        row[first:end] = slots[: max(0, end - first)]
        request.committed = end


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cache_type", REUSING)
def test_a_second_request_gets_the_slots_of_the_first(cache_type, page_size):
    host = Host(cache_type, page_size=page_size)
    prompt = list(range(10, 21))
    first = host.admit(prompt)
    assert len(first.prefix_indices) == 0
    host.rank.offer_chunk(first)
    whole = len(prompt) // page_size * page_size
    assert first.cache_protected_len == first.last_matched_prefix_len == first.last_node.length == whole
    assert first.prefix_indices.tolist() == host.rows.req_to_token[first.req_pool_idx, : len(prompt)].tolist()
    host.check(first)
    second = host.admit(prompt)
    reused = (len(prompt) - 1) // page_size * page_size
    assert second.prefix_indices.tolist() == first.prefix_indices[:reused].tolist()
    host.decode(first, 5)
    host.end(first)
    host.end(second)
    host.idle()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cache_type", REUSING)
def test_equal_prompts_computed_at_the_same_time_end_in_the_same_slots(cache_type, page_size):
    host = Host(cache_type, page_size=page_size)
    prompt = list(range(10, 18))
    first, second = host.admit(prompt), host.admit(prompt)
    host.rank.offer_chunk(first)
    own = host.rows.req_to_token[second.req_pool_idx, :8].tolist()
    host.rank.offer_chunk(second)
    shared = host.rows.req_to_token[second.req_pool_idx, :8].tolist()
    assert shared == host.rows.req_to_token[first.req_pool_idx, :8].tolist() != own
    assert second.prefix_indices.tolist() == shared
    host.check(first, second)
    host.end(second)
    host.end(first)
    host.idle()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cache_type", REUSING)
def test_a_chunked_prompt_keeps_its_partial_page_and_offers_each_chunk(cache_type, page_size):
    host = Host(cache_type, page_size=page_size)
    prompt = list(range(30))
    request = host.admit(prompt, chunk=10)
    host.rank.offer_chunk(request)
    assert len(request.prefix_indices) == 10
    assert request.last_node.length == 10 // page_size * page_size
    host.extend(request, 23)
    host.rank.offer_chunk(request)
    host.extend(request, 30)
    host.rank.offer_chunk(request)
    assert host.rank.match(prompt, None).slots.tolist() == request.prefix_indices[: 30 // page_size * page_size].tolist()
    host.check(request)
    host.end(request)
    host.idle()


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_cache_without_reuse_leaves_everything_with_the_request(page_size):
    host = Host("chunk_cache", page_size=page_size)
    request = host.admit(list(range(11)), chunk=6)
    host.rank.offer_chunk(request)
    assert len(request.prefix_indices) == 6
    assert request.cache_protected_len == 0
    host.extend(request, 11)
    host.rank.offer_chunk(request)
    host.decode(request, 3)
    host.end(request)
    assert host.pool.available_size() == host.pool.size_per_rank
    host.idle()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cache_type", ["chunk_cache", *REUSING])
def test_a_retracted_request_offers_nothing_and_leaks_nothing(cache_type, page_size):
    host = Host(cache_type, page_size=page_size)
    request = host.admit(list(range(13)))
    host.rank.offer_chunk(request)
    for token in range(3):
        host.decode(request, token)
    known = host.rank.match([*range(13), 0, 1, 2], None).slots
    host.end(request, insert=False)
    assert host.rank.match([*range(13), 0, 1, 2], None).slots.tolist() == known.tolist()
    host.idle()


@pytest.mark.parametrize("cache_type", ["chunk_cache", *REUSING])
def test_a_request_that_is_finished_twice_is_freed_once(cache_type):
    host = Host(cache_type)
    request = host.admit(list(range(9)))
    host.rank.finish(request, insert=True)
    host.rank.finish(request, insert=True)
    host.idle()


@pytest.mark.parametrize("cache_type", ["chunk_cache", *REUSING])
def test_a_request_that_is_not_looked_up_is_computed_and_kept(cache_type):
    """sgl-jax gives a request that names a room of disaggregation the root node, and no node at all before its next chunk."""
    host = Host(cache_type)
    prompt = list(range(20))
    held = host.rank.root().held
    held.lock()
    assert held.length == 0
    request = HostRequest(prompt, host._unused_rows.pop(), held)
    host.extend(request, 8)
    for end in (16, 20):
        host.rank.offer_chunk(request)
        host.check(request)
        request.last_node = None
        host.extend(request, end)
    host.rank.offer_chunk(request)
    host.check(request)
    request.last_node = None
    host.end(request)
    host.idle()
    known = host.rank.match(prompt, None).slots
    assert len(known) == (0 if cache_type == "chunk_cache" else 20)


def test_what_was_computed_for_a_request_without_a_hold_is_freed():
    host = Host("radix_cache")
    request = host.admit(list(range(9)))
    request.last_node.unlock()
    host.end(request)
    assert host.pool.available_size() == host.pool.size_per_rank
    host.idle()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("number", [-1, 1 << 40])
@pytest.mark.parametrize("cache_type", REUSING)
def test_a_number_that_is_no_token_is_computed_and_neither_found_nor_kept(cache_type, number, page_size):
    host = Host(cache_type, page_size=page_size)
    for _ in range(2):
        request = host.admit([*range(8), number, *range(8)])
        assert len(request.prefix_indices) == 0
        host.rank.offer_chunk(request)
        assert len(request.prefix_indices) == 17
        host.check(request)
        host.decode(request, 3)
        host.end(request)
    assert host.pool.available_size() == host.pool.size_per_rank
    host.idle()


def test_half_a_surrogate_pair_is_a_salt_like_any_other():
    host = Host("radix_cache")
    host.end(host.admit([1, 2, 3, 4], "\ud800"))
    assert len(host.rank.match([1, 2, 3], "\ud800").slots) == 3
    assert len(host.rank.match([1, 2, 3], "\udfff").slots) == 0
    host.idle()


def test_salts_separate_and_an_empty_salt_is_not_none():
    host = Host("radix_cache")
    for salt in (None, "", "a"):
        host.end(host.admit([1, 2, 3, 4], salt))
    found = {salt: tuple(host.rank.match([1, 2, 3], salt).slots.tolist()) for salt in (None, "", "a", "b")}
    assert found["b"] == ()
    assert len({*found.values()}) == 4
    host.idle()


def test_eviction_gets_the_whole_need_and_frees_what_is_missing():
    host = Host("radix_cache", pages=20)
    host.end(host.admit(list(range(15))))
    assert host.pool.available_size() == 5
    assert host.rank.evict(8) == 3
    assert host.pool.available_size() == 8
    assert host.rank.evict(8) == 0
    assert host.rank.evict(100) == 12
    host.idle()


def test_what_a_request_reads_is_not_evicted_and_a_second_release_is_an_error():
    host = Host("radix_cache", pages=20)
    request = host.admit(list(range(15)))
    host.rank.offer_chunk(request)
    assert host.rank.evict(20) == 0
    with pytest.raises(IntegrityError, match="still holds"):
        host.rank.reset()
    host.end(request)
    with pytest.raises(LockError, match="more often"):
        request.last_node.unlock()
    host.rank.reset()
    assert host.pool.available_size() == 20


def test_a_prefix_that_was_evicted_before_it_was_locked_is_an_error_and_not_a_wrong_page():
    host = Host("radix_cache")
    host.end(host.admit(list(range(9))))
    found = host.rank.match(list(range(9)), None)
    host.rank.cache.evict(FULL, 9)
    with pytest.raises(IntegrityError, match="between its match and its lock"):
        found.held.lock()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cache_type", ["chunk_cache", *REUSING])
def test_many_requests_in_a_small_pool_read_their_own_tokens_and_leak_nothing(cache_type, page_size):
    """A slot's content is the prefix that was computed into it: a request reads right when its row spells its tokens."""
    rng = random.Random(page_size)
    host = Host(cache_type, pages=96 // page_size, page_size=page_size)
    content: dict[int, tuple[int, ...]] = {}
    stems = [[rng.randrange(4) for _ in range(24)] for _ in range(3)]
    running: list[HostRequest] = []

    def written(request, start):
        row = host.rows.req_to_token[request.req_pool_idx]
        ids = tuple(request.origin_input_ids + request.output_ids)
        content.update({int(row[i]): ids[: i + 1] for i in range(start, request.committed)})

    def reads_right(request):
        row = host.rows.req_to_token[request.req_pool_idx]
        ids = tuple(request.origin_input_ids + request.output_ids)
        assert [content[int(row[i])] for i in range(request.committed)] == [ids[: i + 1] for i in range(request.committed)]

    for _ in range(300):
        room = host.pool.available_size() + host.rank.evictable
        if len(running) < 3 and room > 40:
            prompt = rng.choice(stems)[: rng.randrange(1, 24)] + [rng.randrange(4) for _ in range(rng.randrange(1, 5))]
            request = host.admit(prompt, chunk=rng.choice([3, 9, None]))
            written(request, len(request.prefix_indices))
            running.append(request)
        request = rng.choice(running)
        if request.committed < len(request.origin_input_ids):
            host.rank.offer_chunk(request)
            start = request.committed
            host.extend(request, min(start + 9, len(request.origin_input_ids)))
            written(request, start)
            if request.committed == len(request.origin_input_ids):
                host.rank.offer_chunk(request)
        elif len(request.output_ids) < 4 and room > 8:
            host.decode(request, rng.randrange(4))
            written(request, request.committed - 1)
        else:
            host.end(request, insert=rng.random() < 0.8)
            running.remove(request)
        for each in running:
            reads_right(each)
        host.check(*running)
    for request in running:
        host.end(request)
    host.idle()
    if cache_type != "chunk_cache":
        assert host.cache.counters.device_evicted_tokens > 0
        assert host.cache.counters.duplicate_tokens > 0
