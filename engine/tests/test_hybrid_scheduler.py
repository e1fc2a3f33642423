"""The scheduler with windows and states over a host without a model: every page and state that a request reads is checked by what
it answers, and every index has one owner after every step."""

from collections import Counter

import numpy as np
import pytest

from kvcache_conformance.hybrid_store import HybridShape, HybridStore, hybrid_answer
from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.model_spec import ComponentSpec, ModelClass, ModelSpec
from kvcache_core.contracts.tokens import floor_page
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import IntegrityError
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.component import component_of
from kvcache_engine.endings import Endings
from kvcache_engine.errors import RequestError
from kvcache_engine.kv_manager import KVManager
from kvcache_engine.limits import Limits
from kvcache_engine.pools.page_allocator import PageAllocator
from kvcache_engine.request import Phase, Request, RequestSpec
from kvcache_engine.request_pages import RequestPages
from kvcache_engine.request_states import RequestStates
from kvcache_engine.scheduler import Scheduler
from kvcache_engine.snapshots import SnapshotPositions, usual_interval

VOCAB = 251
REQUESTS = 120
INTERVAL = 16
SETS = {"FS": ("full", "swa"), "FR": ("full", "recurrent"), "FSR": ("full", "swa", "recurrent")}
WINDOWS = [(1, 1), (1, 7), (4, 3), (4, 4), (4, 16), (4, 10)]
"""Of one token, and smaller than a page of so many tokens, equal, larger, and no multiple."""
CLASSES: dict[str, ModelClass] = {"FS": "swa", "FR": "hybrid_recurrent", "FSR": "hybrid_recurrent"}


class NoBuffers:
    """A pool set for a cache that moves nothing."""

    def take(self):
        return {}

    def give(self, buffers):
        assert buffers == {}


class Host:
    """A scheduler over a real cache from the builder, with tokens and digests instead of a model."""

    def __init__(
        self,
        components="FSR",
        cache_type="unified_radix_cache",
        *,
        pages=60,
        window_pages=None,
        states=24,
        page_size=4,
        window=10,
        chunk_tokens=12,
    ):
        self.page_size = page_size
        specs = {
            "full": ComponentSpec("full"),
            "swa": ComponentSpec("swa", window=window),
            "recurrent": ComponentSpec("recurrent", state_shape=(1, 1, 1)),
        }
        names = SETS[components]
        model = ModelSpec("tokens", "1", CLASSES[components], tuple(specs[name] for name in names))
        sizes = {"full": pages, "swa": window_pages or pages, "recurrent": states}
        totals = {name: sizes[name] for name in names}
        self.allocators = {name: PageAllocator(total) for name, total in totals.items()}
        self.shape = HybridShape(
            {name: specs[name].window for name in names if name != "recurrent"}, [name for name in names if name == "recurrent"]
        )
        self.store = HybridStore(self.shape, totals, page_size, VOCAB)
        deps = CacheDeps(
            model=model,
            page_size=page_size,
            allocators=self.allocators,
            pools=dict.fromkeys(names),  # type: ignore[arg-type]  # no cache under test here moves pages
            pool_set=NoBuffers(),
            queue=TransferQueue({}),
        )
        self.cache: BasePrefixCache = build_kv_cache(CacheConfig(cache_type=cache_type, page_size=page_size), deps)
        snapshots = SnapshotPositions(page_size, INTERVAL if self.shape.states else None)
        kv = KVManager(
            self.cache, self.allocators, page_size, chunk_tokens, [component_of(spec) for spec in model.components], snapshots
        )
        limits = Limits(context=1000, vocab_size=VOCAB, chunk_tokens=chunk_tokens, max_running=6)
        endings = Endings(set(), lambda ids: " ".join(map(str, ids)), 1000)
        self.scheduler = Scheduler(self.cache, kv, self.store, limits, endings, pause=lambda _: None)

    def ask(self, name, prompt, max_tokens=8) -> Request:
        return self.scheduler.submit(RequestSpec(name, np.asarray(prompt, np.int32), max_tokens))

    def step(self) -> list[Request]:
        done = self.scheduler.step()
        self.check()
        return done

    def owned(self, name) -> int:
        held = [*self.scheduler.running, *self.scheduler.waiting]
        return sum(len((r.states if name == "recurrent" else r.pages).owned(name)) for r in held)

    def check(self):
        self.scheduler.check_integrity()
        for name in self.allocators:
            size = self.cache.size(name)
            assert size.free + size.evictable + size.protected + size.in_flight + size.request_owned == size.total
            assert size.request_owned == self.owned(name)

    def serve(self, name, prompt, max_tokens=8) -> Request:
        """One request, alone."""
        request = self.ask(name, prompt, max_tokens)
        while self.scheduler.busy:
            self.step()
        self.assert_right(request)
        return request

    def assert_right(self, request: Request):
        want = hybrid_answer(self.shape, request.spec.prompt_ids, request.spec.max_tokens, VOCAB)
        assert request.output_ids == want, request.spec.id
        assert request.counts.cached + request.counts.computed == request.n_prompt

    def assert_idle(self):
        for name in self.allocators:
            size = self.cache.size(name)
            assert size.free + size.evictable == size.total, name
        assert self.cache.reset()
        assert all(allocator.n_free == allocator.total for allocator in self.allocators.values())


def tokens(n, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, n).astype(np.int32)


def phase_of(request: Request) -> str:
    return "PREEMPTED" if request.phase is Phase.QUEUED and request.preemptions else request.phase.name


SHAPES = [
    *((components, page, window) for components in ("FS", "FSR") for page, window in WINDOWS),
    *(("FR", page, 10) for page in (1, 4)),
]


@pytest.mark.parametrize("cache_type", ["unified_radix_cache", "chunk_cache"])
@pytest.mark.parametrize(("components", "page_size", "window"), SHAPES)
def test_random_requests_with_aborts_and_preemption(components, page_size, window, cache_type):
    run_requests(components, page_size, window, cache_type, REQUESTS)


def run_requests(components, page_size, window, cache_type, requests):
    host = Host(components, cache_type, pages=112 // page_size, states=14, page_size=page_size, window=window)
    rng = np.random.default_rng(page_size + window)
    families = [tokens(70, seed) for seed in range(4)]
    live: list[Request] = []
    done: list[Request] = []
    aborted: Counter[str] = Counter()
    submitted = 0
    while submitted < requests or host.scheduler.busy:
        if submitted < requests and len(live) < 10 and rng.random() < 0.6:
            base = families[rng.integers(len(families))]
            shared, own, answer = (12, 4, (10, 60)) if rng.random() < 0.5 else (70, 12, (1, 20))
            prompt = np.concatenate([base[: rng.integers(1, shared)], rng.integers(0, VOCAB, rng.integers(0, own))])
            live.append(host.ask(str(submitted), prompt, int(rng.integers(*answer))))
            submitted += 1
        if live and rng.random() < 0.08:
            phase = min({phase_of(r) for r in live}, key=lambda name: (aborted[name], name))
            victim = next(r for r in live if phase_of(r) == phase)
            live.remove(victim)
            aborted[phase] += 1
            host.scheduler.abort(victim)
            host.check()
        finished = host.step()
        live = [r for r in live if r.phase is not Phase.DONE]
        done += finished
    for request in done:
        assert request.error is None
        host.assert_right(request)
    counted = sum(r.counts.computed + r.counts.recomputed + r.counts.decoded for r in done)
    assert counted <= host.store.tokens_computed
    assert len(done) + sum(aborted.values()) == requests
    assert host.scheduler.stats.preemptions > 5
    assert min(aborted[phase] for phase in ("QUEUED", "PREEMPTED", "PREFILL", "DECODE")) >= 1, aborted
    if cache_type == "unified_radix_cache":
        assert sum(r.counts.device for r in done) > 50
        assert host.cache.counters.device_evicted_tokens > 150
    host.assert_idle()


def test_pages_behind_the_window_come_free_while_a_request_runs():
    host = Host("FS", pages=80, window=10)
    request = host.ask("long", tokens(24), 200)
    seen: set[int] = set()
    while host.scheduler.busy:
        host.step()
        if request.phase is Phase.DECODE:
            seen.add(host.owned("swa"))
            if request.computed >= 24 + 12:
                # Nothing of the prompt is seen any more, so the lock no longer holds the window's part of it.
                assert host.cache.size("swa").protected == 0
                assert host.cache.size("full").protected > 0
    host.assert_right(request)
    # The most: nine tokens before a page boundary, and the page being written.
    assert max(seen) == 4
    assert host.cache.size("full").evictable == (24 + 199) // 4
    host.assert_idle()


@pytest.mark.parametrize("components", ["FS", "FSR"])
def test_what_was_decoded_is_reused_up_to_its_last_page(components):
    """T2: a later match ends at the page boundary, and needs the window before that."""
    host = Host(components, pages=200)
    for n in range(30, 34):
        prompt = tokens(n, n)
        first = host.serve(f"{n}", prompt, 20)
        whole = np.concatenate([prompt, first.output_ids]).astype(np.int32)
        assert host.cache.match_prefix(whole).device_len == floor_page(n + 19, 4)
    host.assert_idle()


def test_a_window_pool_smaller_than_the_prompt():
    """A prompt of 100 pages with 10 pages of windows: what lies behind is taken from the cache as it goes on."""
    host = Host("FS", pages=112, window_pages=10)
    assert host.serve("long", tokens(400), 20).counts.device == 0
    assert host.serve("again", tokens(400), 20).counts.device == floor_page(399, 4)
    with pytest.raises(RequestError, match="window_tokens"):
        Host("FS", pages=112, window_pages=9).ask("long", tokens(400), 20)


@pytest.mark.parametrize("cache_type", ["unified_radix_cache", "chunk_cache"])
def test_states_of_one_request_are_two(cache_type):
    """The running one and the last snapshot; with a cache, the snapshot of a prompt is the cache's."""
    host = Host("FR", cache_type, states=3)
    request = host.ask("one", tokens(50), 40)
    while host.scheduler.busy:
        host.step()
        assert host.owned("recurrent") <= 2
    host.assert_right(request)
    host.assert_idle()


def test_a_prompt_leaves_snapshots_at_the_interval_and_at_its_end():
    host = Host("FR", page_size=4)
    prompt = tokens(71)
    host.serve("first", prompt, 1)
    lengths = [host.cache.match_prefix(prompt[:n]).device_len for n in range(72)]
    assert sorted(set(lengths)) == [0, 16, 32, 48, 64, 68]
    assert lengths[16] == 16 and lengths[67] == 64 and lengths[68] == 68


@pytest.mark.parametrize("components", ["FR", "FSR"])
def test_how_far_a_conversation_is_reused(components):
    host = Host(components, page_size=4, pages=200)
    prompt = tokens(71)
    first = host.serve("first", prompt, 20)
    assert host.serve("the same", prompt, 1).counts.device == 68
    assert host.serve("one token less", prompt[:-1], 1).counts.device == 68
    # Computed were 71 + 19 tokens; 88 is the last boundary that the answer passed.
    turn = np.concatenate([prompt, first.output_ids, tokens(9, 1)]).astype(np.int32)
    assert host.serve("one turn more", turn, 1).counts.device == 88
    for at, expected in ((60, 48), (35, 32), (15, 0)):
        branch = np.concatenate([prompt[:at], tokens(30, at)]).astype(np.int32)
        assert host.serve(f"a branch at {at}", branch, 1).counts.device == expected
    host.assert_idle()


def test_a_prompt_that_ends_at_a_page_boundary_minus_one_token():
    """There is no snapshot at the page before: the interval's is the last one left."""
    host = Host("FR", page_size=4)
    prompt = tokens(69)
    host.serve("first", prompt, 1)
    assert host.serve("the same", prompt, 1).counts.device == 68
    assert host.serve("one token less", prompt[:-1], 1).counts.device == 64


def test_a_request_that_no_pool_of_states_or_windows_can_hold():
    host = Host("FSR", pages=6, states=2)
    with pytest.raises(RequestError, match="window_tokens and device_states"):
        host.ask("too long", tokens(20), 4)


@pytest.mark.parametrize(
    ("page_size", "state_bytes", "token_bytes", "expected"),
    [(16, 0, 1, 4096), (16, 9600, 160, 4096), (48, 10, 1, 4128), (16, 1_000_000, 100, 40_000)],
)
def test_the_usual_interval(page_size, state_bytes, token_bytes, expected):
    assert usual_interval(page_size, state_bytes, token_bytes) == expected


# planted faults, each with the test that fails under it


def leaves_from_the_unaligned_position(self, request):
    """T2: counted from `computed` itself, a page goes that a later match at the page boundary needs."""
    self._free(request.pages.leave(request.computed))


def goes_on_in_place(self, component):
    """B6: the running request goes on writing into the slot that was offered as a snapshot."""
    slots = self._slots[component]
    return int(not slots.own and not slots.target)


def snapshots_are_forgotten(self, component):
    """L1: a request does not give its snapshot back."""
    slots = self._slots[component]
    return np.array([s for s in (slots.current if slots.own else 0, slots.target) if s], np.int32)


def the_window_stays_mapped(self, lock):
    """A page that is no longer locked stays in the table, as one that the request would still give back."""
    self._cached = 0


def states_are_kept_off_a_boundary(self, position, length):
    """A snapshot where no page ends."""
    return self.interval is not None and position >= 4


def pages_behind_are_kept(self, length):
    """Nothing comes free while a request runs."""
    return {}


def released_with_the_lock(self, request):
    """L6: the lock holds a window that was left behind for as long as the request runs."""
    self._free(request.pages.leave(floor_page(request.computed, self._page_size)))


def run_random(components):
    run_requests(components, 4, 10, "unified_radix_cache", 120)


MUTANTS = [
    (
        KVManager,
        "leave_behind",
        leaves_from_the_unaligned_position,
        lambda: test_what_was_decoded_is_reused_up_to_its_last_page("FS"),
    ),
    (RequestStates, "missing", goes_on_in_place, lambda: test_how_far_a_conversation_is_reused("FR")),
    (RequestStates, "owned", snapshots_are_forgotten, lambda: run_random("FR")),
    (RequestPages, "remap", the_window_stays_mapped, lambda: run_random("FS")),
    (RequestPages, "leave", pages_behind_are_kept, test_pages_behind_the_window_come_free_while_a_request_runs),
    (KVManager, "leave_behind", released_with_the_lock, test_pages_behind_the_window_come_free_while_a_request_runs),
    (SnapshotPositions, "keeps", states_are_kept_off_a_boundary, test_a_prompt_leaves_snapshots_at_the_interval_and_at_its_end),
]


@pytest.mark.parametrize(("cls", "method", "fault", "directed"), MUTANTS, ids=[fault.__name__ for _, _, fault, _ in MUTANTS])
def test_planted_faults_are_found(monkeypatch, cls, method, fault, directed):
    monkeypatch.setattr(cls, method, fault)
    with pytest.raises((AssertionError, IntegrityError, ValueError)):
        directed()
