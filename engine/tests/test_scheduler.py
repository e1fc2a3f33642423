"""The scheduler over a host without a model: aborts in every phase, preemption, accounting after every step."""

from collections import Counter

import numpy as np
import pytest

from kvcache_conformance.token_store import TokenStore, answer
from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import IntegrityError
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.endings import Endings
from kvcache_engine.errors import RequestError
from kvcache_engine.kv_manager import KVManager
from kvcache_engine.limits import Limits
from kvcache_engine.pools.page_allocator import PageAllocator
from kvcache_engine.request import Phase, Request, RequestSpec, Sampling
from kvcache_engine.request_pages import RequestPages
from kvcache_engine.scheduler import Scheduler

VOCAB = 97
END = 5
REQUESTS = 1000


class NoBuffers:
    """A pool set for a cache that moves nothing."""

    def take(self):
        return {}

    def give(self, buffers):
        assert buffers == {}


class Host:
    """A scheduler over a real cache from the builder, with pages of tokens instead of a model."""

    def __init__(self, cache_type="chunk_cache", total=40, page_size=4, chunk_tokens=12, max_running=6, context=120):
        self.page_size = page_size
        self.allocator = PageAllocator(total)
        self.store = TokenStore("full", total, page_size, VOCAB)
        deps = CacheDeps(
            model=ModelSpec("tokens", "1", "full_attention"),
            page_size=page_size,
            allocators={"full": self.allocator},
            pools={"full": None},  # type: ignore[dict-item]  # no cache under test here moves pages
            pool_set=NoBuffers(),
            queue=TransferQueue({}),
        )
        self.cache: BasePrefixCache = build_kv_cache(CacheConfig(cache_type=cache_type, page_size=page_size), deps)
        kv = KVManager(self.cache, {"full": self.allocator}, page_size, chunk_tokens)
        limits = Limits(context=context, vocab_size=VOCAB, chunk_tokens=chunk_tokens, max_running=max_running)
        endings = Endings({END}, lambda ids: " ".join(map(str, ids)), context)
        self.pauses: list[float] = []
        self.scheduler = Scheduler(self.cache, kv, self.store, limits, endings, pause=self.pauses.append)

    def ask(self, name, prompt, max_tokens=8, **more) -> Request:
        return self.scheduler.submit(RequestSpec(name, np.asarray(prompt, np.int32), max_tokens, **more))

    def step(self) -> list[Request]:
        done = self.scheduler.step()
        self.check()
        return done

    def check(self):
        self.scheduler.check_integrity()
        size = self.cache.size("full")
        assert size.free + size.evictable + size.protected + size.in_flight + size.request_owned == size.total
        held = sum(len(r.pages.owned("full")) for r in (*self.scheduler.running, *self.scheduler.waiting))
        assert size.request_owned == held

    def run(self, most=10_000) -> list[Request]:
        done = []
        for _ in range(most):
            if not self.scheduler.busy:
                return done
            done += self.step()
        raise AssertionError("the scheduler never came to rest")

    def assert_idle(self):
        size = self.cache.size("full")
        assert size.free + size.evictable == size.total
        assert self.cache.reset()


def assert_right(request: Request):
    want = answer(request.spec.prompt_ids, request.spec.max_tokens, VOCAB, [END])
    assert request.output_ids == want, request.spec.id
    counts = request.counts
    assert counts.cached + counts.computed == request.n_prompt
    assert counts.decoded == len(request.output_ids) - 1


@pytest.mark.parametrize("page_size", [1, 2, 16, 64, 256])
@pytest.mark.parametrize("delta", [-1, 0, 1])
def test_prompts_around_a_page(page_size, delta):
    host = Host(total=max(4, 80 // page_size), page_size=page_size, context=1000)
    length = page_size + delta
    prompts = [np.arange(n) % VOCAB for n in (length, length + page_size, 1) if n > 0]
    requests = [host.ask(str(i), p, max_tokens=3) for i, p in enumerate(prompts)]
    host.run()
    for request in requests:
        assert_right(request)
    host.assert_idle()


def phase_of(request: Request) -> str:
    if request.phase is Phase.QUEUED and request.preemptions:
        return "PREEMPTED"
    if request.phase is Phase.PREFILL:
        return f"PREFILL chunk {min(2, request.computed // 12)}"
    return request.phase.name


@pytest.mark.parametrize("cache_type", ["chunk_cache", "radix_cache"])
def test_long_random_run_with_aborts_in_every_phase_and_preemption(cache_type):
    host = Host(cache_type, total=26)
    rng = np.random.default_rng(8)
    families = [rng.integers(6, VOCAB, 60) for _ in range(4)]
    aborted, done = Counter(), []
    live: list[Request] = []
    submitted = 0
    while submitted < REQUESTS or host.scheduler.busy:
        if submitted < REQUESTS and len(live) < 12 and rng.random() < 0.6:
            base = families[rng.integers(len(families))]
            # Half of them are short with long answers: so many run at once, and grow, that they preempt each other.
            shared, own, tokens = (12, 4, (10, 60)) if rng.random() < 0.5 else (60, 20, (1, 30))
            prompt = np.concatenate([base[: rng.integers(1, shared)], rng.integers(6, VOCAB, rng.integers(0, own))])
            live.append(host.ask(str(submitted), prompt, int(rng.integers(*tokens))))
            submitted += 1
        if live and rng.random() < 0.12:
            # By phase, the one with the fewest aborts so far: otherwise nearly all of them would be queued.
            phase = min({phase_of(r) for r in live}, key=lambda name: (aborted[name], name))
            victim = next(r for r in live if phase_of(r) == phase)
            live.remove(victim)
            aborted[phase] += 1
            host.scheduler.abort(victim)
            assert victim.finish_reason == "abort"
            host.check()
        finished = host.step()
        live = [r for r in live if r.phase is not Phase.DONE]
        done += finished
    for request in done:
        assert request.error is None
        assert_right(request)
    host.assert_idle()
    assert min(aborted[p] for p in ("QUEUED", "PREEMPTED", "PREFILL chunk 1", "PREFILL chunk 2", "DECODE")) >= 10, aborted
    assert host.scheduler.stats.preemptions > 100
    assert host.scheduler.stats.peak_running == 6
    assert sum(r.counts.recomputed for r in done) > 1000
    if cache_type == "radix_cache":
        assert sum(r.counts.device for r in done) > 2000
        assert host.cache.counters.device_evicted_tokens > 2000
    assert len(done) + sum(aborted.values()) == REQUESTS


def test_computed_tokens_are_those_that_went_through_the_model():
    host = Host(total=24)
    rng = np.random.default_rng(3)
    requests = [host.ask(str(i), rng.integers(6, VOCAB, 40), 20) for i in range(8)]
    host.run()
    counted = sum(r.counts.computed + r.counts.recomputed + r.counts.decoded for r in requests)
    assert counted == host.store.tokens_computed
    assert host.scheduler.stats.preemptions > 0


def test_a_request_that_can_never_be_served_is_refused_and_the_others_go_on():
    host = Host(total=10, context=64)
    good = host.ask("good", [1, 2, 3])
    for prompt, more, text in [
        ([], {}, "empty"),
        (np.arange(64), {}, "context holds 64"),
        ([VOCAB], {}, "token ids"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        (np.arange(38), {"max_tokens": 8}, "device pool"),
        ([1], {"sampling": Sampling(temperature=float("nan"))}, "temperature"),
        ([1], {"sampling": Sampling(top_p=0.0)}, "top_p"),
    ]:
        with pytest.raises(RequestError, match=text) as info:
            host.ask("bad", prompt, **more)
        assert "'bad'" in str(info.value)
    host.run()
    assert_right(good)


def test_stops_at_end_token_stop_text_and_context():
    host = Host(total=100, page_size=4, context=40)
    ended = None
    for i in range(VOCAB):
        want = answer(np.asarray([i], np.int32), 30, VOCAB, [END])
        if want[-1] == END and 3 < len(want) < 30:
            ended = (i, want)
            break
    assert ended is not None
    i, want = ended
    by_end = host.ask("end", [i], 35)
    stop_text = f" {want[2]} "
    by_text = host.ask("text", [i], 35, stop=(stop_text,))
    by_context = host.ask("context", np.full(30, 50), 1000)
    host.run()
    assert by_end.finish_reason == "stop"
    assert by_end.output_ids == want
    assert by_end.text == " ".join(map(str, want[:-1]))
    assert by_text.finish_reason == "stop"
    assert by_text.text == " ".join(map(str, want[:2]))
    assert by_context.finish_reason == "length"
    assert by_context.n_tokens == 40


def test_admission_leaves_a_page_for_every_running_request():
    host = Host(total=8, page_size=4, chunk_tokens=16, max_running=4)
    first = host.ask("first", np.arange(12), 16)
    host.step()
    second = host.ask("second", np.arange(12) + 40, 4)
    host.step()
    # 8 pages: 4 with the first request, and 3 + 1 would be left for the second if nothing had to grow.
    assert second.phase in (Phase.PREFILL, Phase.DECODE, Phase.QUEUED)
    host.run()
    assert_right(first)
    assert_right(second)
    host.assert_idle()


# planted faults, each with the test that fails under it


def hits_counted_twice(self, length, device_len):
    """P7: a prefix found again after a preemption is reported as a hit once more."""
    self.counts.device += min(length, self.n_prompt)
    self.high_water = max(self.high_water, length)


def aborts_leave_pages_behind(self, request):
    """L5, L1: the pages of an aborted request stay allocated."""
    request.pages.clear()
    if request.lock is not None:
        self._cache.unlock_ref(request.lock)
        request.lock = None


def duplicates_are_kept(self, owned):
    """L7: what turned out to be a duplicate, refused or left over is never freed."""


def the_tail_is_forgotten(self, component):
    """L1: a request forgets the page it only half filled."""
    return self._tables[component][self._cached :][:-1]


def run_small_pool():
    test_long_random_run_with_aborts_in_every_phase_and_preemption("radix_cache")


MUTANTS = [
    (Request, "count_cached", hits_counted_twice, run_small_pool),
    (KVManager, "abort", aborts_leave_pages_behind, run_small_pool),
    (KVManager, "_free", duplicates_are_kept, run_small_pool),
    (RequestPages, "owned", the_tail_is_forgotten, run_small_pool),
]


@pytest.mark.parametrize(("cls", "method", "fault", "directed"), MUTANTS, ids=[fault.__name__ for _, _, fault, _ in MUTANTS])
def test_planted_faults_are_found(monkeypatch, cls, method, fault, directed):
    monkeypatch.setattr(cls, method, fault)
    with pytest.raises((AssertionError, IntegrityError)):
        directed()
