"""Requests for which storage is read while they are queued, over a scripted cache. Time passes in pauses alone."""

from collections import Counter

import numpy as np
import pytest

from kvcache_conformance.scripted_cache import ScriptedCache
from kvcache_conformance.token_store import TokenStore, answer
from kvcache_core.contracts.locks import Refused
from kvcache_core.errors import IntegrityError, LockError
from kvcache_engine.endings import Endings
from kvcache_engine.kv_manager import KVManager
from kvcache_engine.limits import Limits
from kvcache_engine.pools.page_allocator import PageAllocator
from kvcache_engine.request import Phase, Request, RequestSpec
from kvcache_engine.request_pages import RequestPages
from kvcache_engine.scheduler import PAUSE, Scheduler
from kvcache_engine.waiting_queue import WaitingQueue

PAGE, VOCAB, CHUNK = 4, 97, 8
BASE = np.random.default_rng(1).integers(6, VOCAB, 32).astype(np.int32)
ALL = len(BASE)
NEVER = 10**9


class Host:
    """`timeout`: in pauses."""

    def __init__(self, fetches, timeout=None, total=40, max_running=4, loads=("ok",) * 9, **parts):
        self.allocator = PageAllocator(total)
        self.store = TokenStore("full", total, PAGE, VOCAB)
        self.cache = ScriptedCache(self.allocator, PAGE, BASE, self.store.put, loads, fetches=fetches)
        self.pauses = 0
        self.scheduler = Scheduler(
            self.cache,
            KVManager(self.cache, {"full": self.allocator}, PAGE, CHUNK),
            self.store,
            Limits(context=200, vocab_size=VOCAB, chunk_tokens=CHUNK, max_running=max_running),
            Endings({5}, lambda ids: "", 200),
            fetch_timeout=None if timeout is None else timeout * PAUSE,
            clock=lambda: self.pauses * PAUSE,
            **{"pause": self._pause, **parts},
        )

    def _pause(self, seconds):
        assert seconds == PAUSE
        self.pauses += 1

    def ask(self, name, prompt, max_tokens=4) -> Request:
        return self.scheduler.submit(RequestSpec(name, np.asarray(prompt, np.int32), max_tokens))

    def step(self) -> list[Request]:
        done = self.scheduler.step()
        self.scheduler.check_integrity()
        return done

    def run(self, most=500) -> list[Request]:
        done = []
        for _ in range(most):
            if not self.scheduler.busy:
                return done
            done += self.step()
        raise AssertionError("never came to rest")

    def assert_idle(self):
        assert self.allocator.n_free == self.allocator.total
        assert not self.cache.locks
        assert self.scheduler.fetching == 0


def tail(*tokens):
    return np.concatenate([BASE, np.asarray(tokens, np.int32)])


def assert_right(request):
    assert request.error is None
    assert request.output_ids == answer(request.spec.prompt_ids, request.spec.max_tokens, VOCAB, [5])
    assert request.counts.cached + request.counts.computed == request.n_prompt


def test_what_was_fetched_for_a_request_is_not_computed_and_counts_as_storage():
    host = Host([(3, ALL)])
    request = host.ask("a", tail(50, 51, 52))
    host.step()
    assert request.phase is Phase.QUEUED
    assert host.scheduler.fetching == 1
    host.run()
    assert_right(request)
    counts = request.counts
    assert (counts.device, counts.host, counts.storage, counts.computed) == (0, 0, ALL, 3)
    assert host.pauses >= 2  # nothing else was to do while it waited
    host.assert_idle()


def test_only_what_storage_delivered_counts_as_storage():
    host = Host([(1, 12), (1, ALL)])
    first = host.ask("first", tail(50))
    host.run()
    second = host.ask("second", tail(60))
    host.run()
    assert (first.counts.storage, first.counts.host, first.counts.computed) == (12, 0, ALL - 12 + 1)
    assert (second.counts.storage, second.counts.host, second.counts.computed) == (ALL - 12, 12, 1)
    assert_right(second)
    host.assert_idle()


def test_a_fetched_prefix_that_lies_on_the_device_by_now_counts_as_storage_too():
    request = Request(RequestSpec("a", tail(1, 2), 1), RequestPages((), PAGE), 0.0, fetched=(8, 24))
    request.count_cached(ALL, 16)
    counts = request.counts
    assert (counts.device, counts.storage, counts.host) == (8, 16, 8)


def test_whoever_is_ready_goes_before_one_that_waits_for_storage():
    host = Host([(40, ALL)])
    slow = host.ask("slow", tail(50))
    others = [host.ask(f"ready {i}", BASE[: 5 + i] + 1, max_tokens=3) for i in range(6)]
    while not all(request.phase is Phase.DONE for request in others):
        assert slow.phase is Phase.QUEUED
        host.step()
    assert host.pauses == 0
    host.run()
    for request in (slow, *others):
        assert_right(request)
    assert slow.counts.storage == ALL
    host.assert_idle()


def test_a_deadline_ends_the_wait_and_the_prompt_is_computed():
    host = Host([(NEVER, ALL)], timeout=10)
    request = host.ask("a", tail(50))
    while request.phase is Phase.QUEUED:
        host.step()
        assert host.pauses <= 10
    host.run()
    assert_right(request)
    assert request.counts.computed == request.n_prompt
    assert host.cache.events["cancel fetch"] == 1
    assert 9 <= host.pauses <= 11
    host.assert_idle()


def test_the_deadline_counts_only_for_a_request_whose_turn_has_come():
    """While others are computed, storage may take its time: giving up would gain nothing."""
    host = Host([Refused.NOTHING_TO_DO, (6, ALL)], timeout=0)
    first = host.ask("first", BASE[:30] + 1)
    second = host.ask("second", tail(50))
    while first.phase is not Phase.DECODE:
        host.step()
    host.run()
    assert second.counts.storage == 0  # four chunks were too short
    host = Host([Refused.NOTHING_TO_DO, (3, ALL)], timeout=0)
    first = host.ask("first", BASE[:30] + 1)
    second = host.ask("second", tail(50))
    host.run()
    assert second.counts.storage == ALL
    for request in (first, second):
        assert_right(request)
    host.assert_idle()


def test_a_fetch_that_cannot_start_yet_is_started_later():
    # Asked: the first, both others at once; then only the second again, step by step, and then the third.
    host = Host([(6, ALL), Refused.BUSY, Refused.BUSY, Refused.BUSY, Refused.BUSY, (2, 8), (2, 8)])
    requests = [host.ask(str(i), tail(50 + i)) for i in range(3)]
    host.step()
    assert host.scheduler.fetching == 3
    assert host.cache.events[Refused.BUSY] == 3
    host.run()
    for request in requests:
        assert_right(request)
    assert host.cache.events["fetch"] == 3
    host.assert_idle()


def test_a_cache_that_stays_busy_is_not_waited_for_longer_than_the_deadline():
    host = Host([Refused.BUSY] * 1000, timeout=10)
    request = host.ask("a", tail(50))
    host.run()
    assert_right(request)
    assert request.counts.computed == request.n_prompt
    assert host.pauses <= 11
    host.assert_idle()


@pytest.mark.parametrize("refusal", [Refused.NO_TIER, Refused.NOTHING_TO_DO, Refused.NO_ROOM, Refused.UNAVAILABLE])
def test_nothing_is_waited_for_where_nothing_comes(refusal):
    host = Host([refusal])
    request = host.ask("a", tail(50))
    host.step()
    assert request.phase is not Phase.QUEUED
    host.run()
    assert_right(request)
    host.assert_idle()


@pytest.mark.parametrize("fetch", [(NEVER, ALL), Refused.BUSY])
def test_abort_while_storage_is_read(fetch):
    host = Host([fetch] * 5)
    request = host.ask("a", tail(50))
    host.step()
    host.scheduler.abort(request)
    assert request.finish_reason == "abort"
    assert host.cache.events["cancel fetch"] == (fetch is not Refused.BUSY)
    assert not host.scheduler.busy
    host.step()
    host.assert_idle()


def test_random_fetches_failures_deadlines_and_aborts():
    rng = np.random.default_rng(5)
    refusals = [Refused.NOTHING_TO_DO, Refused.BUSY, Refused.UNAVAILABLE]
    fetches = [
        refusals[rng.integers(3)] if rng.random() < 0.3 else (int(rng.choice([1, 2, 4, 60])), int(rng.integers(0, ALL + 1)))
        for _ in range(4000)
    ]
    loads = [["ok", "ok", "fail", Refused.STALE][i] for i in rng.integers(4, size=4000)]
    host = Host(fetches, timeout=8, total=22, loads=loads)
    live, done, aborted = [], [], Counter()
    for step in range(4000):
        if step < 3000 and len(live) < 8 and rng.random() < 0.25:
            prompt = np.concatenate([BASE[: rng.integers(1, ALL + 1)], rng.integers(6, VOCAB, rng.integers(1, 12))])
            live.append(host.ask(str(step), prompt, int(rng.integers(1, 40))))
        if live and rng.random() < 0.05:
            victim = live.pop(int(rng.integers(len(live))))
            aborted[victim.phase.name] += 1
            host.scheduler.abort(victim)
        if rng.random() < 0.1:
            host.cache.forget()
        done += host.step()
        live = [r for r in live if r.phase is not Phase.DONE]
    assert not host.scheduler.busy
    for request in done:
        assert_right(request)
    assert aborted["QUEUED"] > 30
    assert host.cache.events["fetch"] > 200
    assert host.cache.events["cancel fetch"] > 50
    assert host.cache.events[Refused.BUSY] > 20
    assert sum(r.counts.storage > 0 for r in done) >= 20
    assert sum(r.counts.host for r in done) > 300
    assert host.scheduler.stats.preemptions > 10
    host.assert_idle()


class Ranks:
    """Waiting queues of two ranks over caches that behave alike. The second one's clock goes slower, so it is the last to say
    that a wait is over."""

    def __init__(self, fetch):
        self.now = 100.0
        clocks = [lambda: self.now, self._slower]
        self.caches = [
            ScriptedCache(PageAllocator(40), PAGE, BASE, TokenStore("full", 40, PAGE, VOCAB).put, fetches=[fetch] * 100)
            for _ in clocks
        ]
        self.queues = [WaitingQueue(*parts, self._agree) for parts in zip(self.caches, (10.0, 10.0), clocks, strict=True)]

    def _slower(self):
        return 100.0 + 0.8 * (self.now - 100.0)

    def _agree(self, values):
        return [min(value, int(self._slower() >= 110.0)) for value in values]

    def ask(self):
        """One request each."""
        requests = [Request(RequestSpec("a", tail(50), 1), RequestPages((), PAGE), self.now) for _ in self.queues]
        for queue, request in zip(self.queues, requests, strict=True):
            queue.add(request)
        return requests


@pytest.mark.parametrize("fetch", [(NEVER, ALL), Refused.BUSY])
def test_a_wait_ends_on_every_rank_in_the_same_step(fetch):
    """Whatever a rank's own clock says; and until then each of them has asked the cache as often as the other."""
    ranks = Ranks(fetch)
    ends = []
    requests = ranks.ask()
    for step in range(20):
        ranks.now += 1.0
        ready = [queue.ready() for queue in ranks.queues]
        assert [request is not None for request in ready] in ([False, False], [True, True])
        assert ranks.caches[0].events == ranks.caches[1].events
        if ready == requests:
            ends.append(step)
            break
    assert ends == [12], "the last rank decides, after 10 seconds by its clock"


def test_the_scheduler_asks_the_other_ranks():
    """It hands on what the cache agrees by."""
    asked = []
    host = Host([(NEVER, ALL)], timeout=3, agree=lambda values: asked.append(list(values)) or [0] * len(values))
    request = host.ask("a", tail(50))
    for _ in range(10):
        host.step()
    assert request.phase is Phase.QUEUED and host.scheduler.fetching == 1
    assert asked[0] == [0] and asked[-1] == [1]


def test_a_step_without_work_waits_as_the_cache_says(monkeypatch):
    paused = []
    monkeypatch.setattr(ScriptedCache, "pause", lambda cache, seconds: paused.append(seconds))
    host = Host([(3, ALL)], pause=None)
    host.ask("a", tail(50))
    host.step()
    assert paused == [PAUSE]
    host.run()


# planted faults, each with the test that fails under it


def the_first_holds_up_all(self):
    """One request that waits for storage stalls the ready ones behind it."""
    first = next(iter(self._requests), None)
    fetch = self._fetches.get(first)
    if fetch is not None and not fetch.ticket.done:
        return None
    self._fetches.pop(first, None)
    return first


def each_rank_by_its_own_clock(self, waiting):
    """One rank no longer waits, the others do."""
    return next((request for request, fetch in waiting.items() if fetch.until is not None and self._clock() >= fetch.until), None)


def storage_is_never_given_up(self):
    """S1: a fetch without an end keeps its request for ever."""
    return


def an_aborted_fetch_goes_on(self, request):
    """L5: nobody withdraws the fetch of a request that has gone."""
    self._requests.remove(request)
    self._fetches.pop(request, None)


def busy_is_a_refusal(self):
    """A fetch that could not be started at once is never started."""
    for request in [r for r, fetch in self._fetches.items() if fetch.ticket is None]:
        del self._fetches[request]


def fetched_counts_as_host(self, length, device_len):
    """P7: the tier that a hit is reported for is not the one it came from."""
    end = min(length, self.n_prompt)
    self.counts.device += max(0, min(device_len, end) - self.high_water)
    self.counts.host += max(0, end - max(device_len, self.high_water))
    self.high_water = max(self.high_water, length)


MUTANTS = [
    (WaitingQueue, "ready", the_first_holds_up_all, test_whoever_is_ready_goes_before_one_that_waits_for_storage),
    (WaitingQueue, "_deadline", storage_is_never_given_up, test_a_deadline_ends_the_wait_and_the_prompt_is_computed),
    (WaitingQueue, "_overdue", each_rank_by_its_own_clock, lambda: test_a_wait_ends_on_every_rank_in_the_same_step((NEVER, ALL))),
    (
        WaitingQueue,
        "_overdue",
        each_rank_by_its_own_clock,
        lambda: test_a_wait_ends_on_every_rank_in_the_same_step(Refused.BUSY),
    ),
    (WaitingQueue, "remove", an_aborted_fetch_goes_on, lambda: test_abort_while_storage_is_read((NEVER, ALL))),
    (WaitingQueue, "_try_again", busy_is_a_refusal, test_a_fetch_that_cannot_start_yet_is_started_later),
    (Request, "count_cached", fetched_counts_as_host, test_only_what_storage_delivered_counts_as_storage),
]


@pytest.mark.parametrize(("cls", "method", "fault", "directed"), MUTANTS, ids=[fault.__name__ for _, _, fault, _ in MUTANTS])
def test_planted_faults_are_found(monkeypatch, cls, method, fault, directed):
    monkeypatch.setattr(cls, method, fault)
    with pytest.raises((AssertionError, IntegrityError, LockError)):
        directed()
