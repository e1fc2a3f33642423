"""UnifiedRadixCache with the real controller, host pools and jax arrays, driven as a host drives it; content is read by value."""

import hashlib
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from kvcache_core import CacheConfig, build_kv_cache
from kvcache_core.config.model import HiCacheConfig
from kvcache_core.contracts.locks import Refused, Ticket
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.contracts.results import full
from kvcache_core.deps import CacheDeps
from kvcache_core.transfer_queue import TransferQueue

PAGE = 4
DEVICE_PAGES = 16


@dataclass
class Allocator:
    total: int
    free_list: list[int] = field(init=False)

    def __post_init__(self):
        self.free_list = list(range(self.total, 0, -1))

    @property
    def n_free(self):
        return len(self.free_list)

    def alloc(self, n):
        if n > self.n_free:
            return None
        return np.asarray([self.free_list.pop() for _ in range(n)], np.int32)

    def free(self, indices):
        assert not set(indices.tolist()) & set(self.free_list)
        self.free_list += indices.tolist()


def content_of(tokens, end):
    digest = hashlib.blake2b(np.asarray(tokens[:end], np.int32).tobytes(), digest_size=12).digest()
    return np.frombuffer(digest, np.uint16).reshape(2, 3)


class Host:
    """Serves one request after the other."""

    def __init__(self, jax_pool, gate, agree=list, **hicache):
        self.pool = jax_pool(DEVICE_PAGES)
        pools = {"full": self.pool}
        queue = TransferQueue(pools)
        self.gate = gate(pools, queue)
        self.allocator = Allocator(DEVICE_PAGES)
        deps = CacheDeps(
            model=ModelSpec("m", "1", "full_attention"),
            page_size=PAGE,
            allocators={"full": self.allocator},
            pools=pools,
            pool_set=self.gate,
            queue=queue,
            agree=agree,
        )
        config = CacheConfig(cache_type="unified_radix_cache", page_size=PAGE, hicache=HiCacheConfig(**hicache))
        self.cache = build_kv_cache(config, deps)
        self.loaded = 0

    def alloc(self, n):
        pages = self.allocator.alloc(n)
        if pages is None:
            self.cache.evict("full", n - self.allocator.n_free)
            pages = self.allocator.alloc(n)
        assert pages is not None
        return pages

    def settle(self):
        for _ in range(1000):
            self.gate.idle()
            self.cache.poll()
            if not self.cache.size("full", "host").in_flight + self.cache.size("full").in_flight:
                return
            threading.Event().wait(0.001)
        raise AssertionError("copies do not end")

    def admit(self, tokens):
        """The lock, after a load where there is something to load."""
        ids = np.asarray(tokens[:-1], np.int32)
        self.cache.poll()
        match = self.cache.match_prefix(ids)
        if match.host_len > match.device_len:
            ticket = self.cache.load(match)
            if isinstance(ticket, Ticket):
                assert ticket.wait(30)
                assert ticket.ok
                self.loaded += ticket.lock.length - match.device_len
                return ticket.lock
            assert ticket is Refused.NO_ROOM
        lock = self.cache.lock_ref(match)
        assert lock is not None
        return lock

    def serve(self, tokens, *, chunk=None):
        """`tokens` fill whole pages. Every cached page is read and compared, the rest is computed, in chunks, and offered."""
        lock = self.admit(tokens)
        start = lock.length
        ends = list(range(PAGE, start + 1, PAGE))
        cached = lock.segment("full").indices
        if len(cached):
            assert np.array_equal(self.gate.read(cached), [content_of(tokens, end) for end in ends])
        for at in range(start, len(tokens), chunk or len(tokens)):
            stop = min(len(tokens), at + (chunk or len(tokens)))
            pages = self.alloc((stop - at) // PAGE)
            self.gate.write(pages, [content_of(tokens, end) for end in range(at + PAGE, stop + 1, PAGE)], "full")
            result = self.cache.insert(np.asarray(tokens[:stop], np.int32), full(pages, PAGE, at))
            assert result.length == stop
            following = self.cache.lock_ref(self.cache.match_prefix(np.asarray(tokens[:stop], np.int32)))
            for gone in (result.duplicates["full"], result.refused["full"]):
                self.allocator.free(gone)
            self.cache.unlock_ref(lock)
            lock = following
            self.cache.poll()
        self.cache.unlock_ref(lock)
        self.cache.check_integrity({"full": np.empty(0, np.int32)})
        return start


@pytest.fixture
def make_host(async_impl, host_pool_name, jax_pool, gate_type):
    hosts = []

    def make(**hicache):
        hosts.append(Host(jax_pool, gate_type, async_impl=async_impl, host_pool=host_pool_name, **hicache))
        return hosts[-1]

    yield make
    for host in hosts:
        host.cache.close()


def conversation(number, turns):
    return [1000 * number + i for i in range(2 * PAGE * turns)]


@pytest.mark.parametrize("backup_on", ["insert", "evict"])
@pytest.mark.parametrize("slots", [1, 3, 12, 80])
def test_many_interleaved_conversations(make_host, slots, backup_on):
    """B9, P5: the device is too small, and the host has one page, less than a request, less than the device, or enough."""
    host = make_host(ratio=(slots + 0.5) / DEVICE_PAGES, backup_on=backup_on, persist_on="never")
    hits = 0
    for turn in range(1, 5):
        for number in range(5):
            hits += host.serve([*conversation(number, turn), *([number] * PAGE)])
            if slots == 80:
                # What is counted below must not depend on how fast a worker is.
                host.settle()
    counters = host.cache.counters
    assert counters.device_evicted_tokens
    if slots == 80:
        assert host.loaded > 100
        assert counters.host_loaded_tokens == host.loaded
    host.settle()
    assert host.cache.size("full", "host").total == slots
    host.cache.evict("full", DEVICE_PAGES)
    host.settle()
    host.cache.evict("full", slots, "host")
    assert host.allocator.n_free == DEVICE_PAGES
    assert host.cache.size("full", "host").free == slots


def test_a_prefix_seen_once_is_backed_up_and_so_is_every_chunk(make_host):
    """P3, L6: completions are collected in the steps of a request."""
    host = make_host(ratio=4.0, backup_on="insert", persist_on="never")
    tokens = conversation(1, 4)
    host.serve(tokens, chunk=PAGE)
    host.settle()
    host.cache.evict("full", DEVICE_PAGES)
    assert host.cache.match_prefix(np.asarray(tokens, np.int32))[1:] == (0, len(tokens), len(tokens))
    assert host.serve([*tokens, 1, 2, 3, 4]) == len(tokens)


def test_a_device_that_is_full_takes_a_load(make_host):
    """P4."""
    host = make_host(ratio=4.0, backup_on="evict", persist_on="never")
    first, second = conversation(1, 4), conversation(2, 8)
    host.serve(first)
    host.serve(second)
    assert host.allocator.n_free == 0
    host.settle()
    # One page is computed, so that much has to be had besides.
    assert host.serve([*first, 1, 2, 3, 4]) == len(first)


def test_a_reset_under_copies_keeps_nothing_and_nothing_lands(make_host):
    """S9."""
    host = make_host(ratio=4.0, backup_on="insert", persist_on="never")
    tokens = conversation(1, 2)
    host.serve(tokens)
    host.settle()
    host.cache.evict("full", DEVICE_PAGES)
    ticket = host.cache.load(host.cache.match_prefix(np.asarray(tokens, np.int32)))
    assert isinstance(ticket, Ticket)
    assert not host.cache.reset()
    host.gate.idle()
    ticket.cancel()
    host.serve(conversation(2, 2))
    assert host.cache.reset()
    host.cache.check_integrity({"full": np.empty(0, np.int32)})
    host.settle()
    assert host.allocator.n_free == DEVICE_PAGES
    assert host.cache.size("full", "host").free == host.cache.size("full", "host").total
    assert host.cache.match_prefix(np.asarray(tokens, np.int32)).matched_len == 0
    assert host.serve(tokens) == 0


def test_an_abort_while_loading_leaves_nothing_behind(make_host):
    """L5."""
    host = make_host(ratio=4.0, backup_on="insert", persist_on="never")
    tokens = conversation(1, 2)
    host.serve(tokens)
    host.settle()
    host.cache.evict("full", DEVICE_PAGES)
    for dispatched in (False, True):
        ticket = host.cache.load(host.cache.match_prefix(np.asarray(tokens, np.int32)))
        assert isinstance(ticket, Ticket)
        if dispatched:
            host.gate.idle()
        ticket.cancel()
        host.settle()
        host.cache.check_integrity({"full": np.empty(0, np.int32)})
        host.cache.evict("full", DEVICE_PAGES)
        assert host.allocator.n_free == DEVICE_PAGES
    assert host.serve(tokens) == len(tokens) - PAGE


class OtherRank:
    """Agrees with everything, except that it could not start what it is asked about while `failing`."""

    def __init__(self):
        self.failing = False

    def __call__(self, values):
        return [0] if self.failing and list(values) == [1] else list(values)


def test_a_load_that_another_rank_could_not_start_is_gone(make_host):
    """Its pages are free, and what others put there stays; the next load brings everything."""
    host = make_host(agree=(other := OtherRank()), ratio=4.0, backup_on="insert", persist_on="never")
    # Two nodes, whose pages come from batches of their own: a worker has to assemble them.
    tokens = conversation(1, 4)
    host.serve(tokens[: 4 * PAGE])
    host.serve(tokens)
    host.settle()
    host.cache.evict("full", DEVICE_PAGES)
    match = host.cache.match_prefix(np.asarray(tokens, np.int32))
    other.failing = True
    assert host.cache.load(match) is Refused.NO_ROOM
    other.failing = False
    assert host.cache.size("full").in_flight == 0
    assert host.allocator.n_free == DEVICE_PAGES
    host.cache.check_integrity({"full": np.empty(0, np.int32)})
    second = conversation(2, 8)
    host.serve(second)
    for _ in range(3):
        host.gate.idle()
        assert host.cache.counters.host_loaded_tokens == 0
    assert host.serve([*second[:-PAGE], 1, 2, 3, 4]) == len(second) - PAGE
    assert host.serve([*tokens, 1, 2, 3, 4]) == len(tokens)
    assert host.cache.counters.host_loaded_tokens


def test_closing_ends_the_threads_and_only_the_owner_dispatched(make_host):
    host = make_host(ratio=4.0, backup_on="insert", persist_on="never")
    host.serve(conversation(1, 4))
    host.settle()
    host.cache.close()
    host.cache.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-hicache")]
    assert host.pool.threads == {threading.get_ident()}
