"""Requests that wait for a load from host memory, over a cache whose answers and failures are scripted.

The cache under the scheduler keeps one known prefix "on the host"; each `load` gives the next scripted outcome.
"""

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
from kvcache_engine.request import Phase, RequestSpec
from kvcache_engine.scheduler import PAUSE, Scheduler

PAGE, VOCAB = 4, 97
BASE = np.random.default_rng(1).integers(6, VOCAB, 32).astype(np.int32)


class Host:
    def __init__(self, script, total=40, polls=2):
        self.allocator = PageAllocator(total)
        self.store = TokenStore("full", total, PAGE, VOCAB)
        self.cache = ScriptedCache(self.allocator, PAGE, BASE, self.store.put, script, polls)
        kv = KVManager(self.cache, {"full": self.allocator}, PAGE, chunk_tokens=8)
        limits = Limits(context=200, vocab_size=VOCAB, chunk_tokens=8, max_running=4)
        self.pauses = []
        self.scheduler = Scheduler(
            self.cache, kv, self.store, limits, Endings({5}, lambda ids: "", 200), pause=self.pauses.append
        )

    def ask(self, name, prompt, max_tokens=4):
        return self.scheduler.submit(RequestSpec(name, np.asarray(prompt, np.int32), max_tokens))

    def run(self):
        done = []
        for _ in range(1000):
            if not self.scheduler.busy:
                return done
            done += self.scheduler.step()
            self.scheduler.check_integrity()
        raise AssertionError("never came to rest")

    def assert_idle(self):
        assert self.allocator.n_free == self.allocator.total
        assert not self.cache.locks


def tail(*tokens):
    return np.concatenate([BASE, np.asarray(tokens, np.int32)])


def test_a_loaded_prefix_is_not_computed_again():
    host = Host(["ok"])
    request = host.ask("a", tail(50, 51, 52))
    host.run()
    assert request.output_ids == answer(request.spec.prompt_ids, 4, VOCAB, [5])
    assert (request.counts.device, request.counts.host, request.counts.computed) == (0, 32, 3)
    assert host.store.idle_steps >= 1  # while it waited, queued transfers were dispatched
    assert host.pauses == [PAUSE] * host.store.idle_steps  # and the processor was left to whoever does them
    host.assert_idle()


def test_a_lock_is_not_exchanged_for_a_shorter_one():
    """T3: this cache takes nothing, so an insert gives length 0 while the request holds 32 loaded tokens."""
    host = Host(["ok"])
    request = host.ask("a", tail(*range(50, 60)))
    host.run()
    assert request.output_ids == answer(request.spec.prompt_ids, 4, VOCAB, [5])
    assert (request.counts.host, request.counts.computed) == (32, 10)
    host.assert_idle()


@pytest.mark.parametrize(
    ("script", "host_tokens"),
    [
        (["fail"], 0),
        ([Refused.NO_ROOM], 0),
        ([Refused.BUSY], 0),
        ([Refused.STALE, "ok"], 32),
        ([Refused.STALE, "fail"], 0),
        ([Refused.STALE, Refused.STALE], 0),
    ],
)
def test_whatever_becomes_of_the_load_the_answer_is_right(script, host_tokens):
    host = Host(script)
    request = host.ask("a", tail(50, 51, 52))
    host.run()
    assert request.output_ids == answer(request.spec.prompt_ids, 4, VOCAB, [5])
    assert request.counts.host == host_tokens
    assert request.counts.cached + request.counts.computed == request.n_prompt
    assert not host.cache.loads, "every scripted outcome was used, and no more"
    host.assert_idle()


def test_abort_while_loading_gives_everything_back():
    host = Host(["ok"])
    request = host.ask("a", tail(50))
    host.scheduler.step()
    assert request.phase is Phase.LOADING
    host.scheduler.abort(request)
    host.scheduler.check_integrity()
    assert host.cache.events["cancel"] >= 1
    for _ in range(3):
        host.scheduler.step()
        host.scheduler.check_integrity()
    host.assert_idle()


def test_a_loading_request_is_preempted_for_an_older_one():
    # 12 pages: the older request needs 10 in the end; the load takes 8 and its request 1.
    host = Host(["ok"] * 9, total=12, polls=20)
    older = host.ask("older", [50], max_tokens=38)
    host.scheduler.step()
    younger = host.ask("younger", tail(60, 61))
    host.scheduler.step()
    assert younger.phase is Phase.LOADING
    host.run()
    for request in (older, younger):
        assert request.output_ids == answer(request.spec.prompt_ids, request.spec.max_tokens, VOCAB, [5])
    assert len(older.output_ids) == 38
    assert younger.preemptions >= 1
    assert host.cache.events["cancel"] >= 1
    host.assert_idle()


def test_nobody_gives_way_for_pages_that_a_given_up_load_sets_free():
    # 15 pages: 9 for the youngest, whose load is given up for the older two; its pages come free only when it ends.
    host = Host(["ok"] * 9, total=15, polls=25)
    older, middle = host.ask("older", [50], max_tokens=30), host.ask("middle", [52], max_tokens=26)
    for _ in range(2):
        host.scheduler.step()
    youngest = host.ask("youngest", tail(60, 61))
    host.scheduler.step()
    assert youngest.phase is Phase.LOADING
    host.run()
    for request in (older, middle, youngest):
        assert request.output_ids == answer(request.spec.prompt_ids, request.spec.max_tokens, VOCAB, [5])
    assert youngest.preemptions >= 1
    assert (older.preemptions, middle.preemptions) == (0, 0)
    assert host.pauses  # steps in which all had to wait
    host.assert_idle()


def test_random_loads_failures_and_aborts():
    rng = np.random.default_rng(11)
    outcomes = ["ok", "ok", "fail", Refused.NO_ROOM, Refused.BUSY, Refused.STALE]
    host = Host([outcomes[i] for i in rng.integers(len(outcomes), size=4000)], total=22, polls=3)
    live, done, aborted = [], [], Counter()
    for step in range(3000):
        if step < 2500 and len(live) < 8 and rng.random() < 0.3:
            prompt = np.concatenate([BASE[: rng.integers(1, 33)], rng.integers(6, VOCAB, rng.integers(1, 12))])
            live.append(host.ask(str(step), prompt, int(rng.integers(1, 40))))
        if live and rng.random() < 0.08:
            # A phase first, then one in it: otherwise nearly all of them would be queued.
            phases = sorted({r.phase.name for r in live})
            phase = phases[int(rng.integers(len(phases)))]
            victim = next(r for r in live if r.phase.name == phase)
            live.remove(victim)
            aborted[victim.phase.name] += 1
            host.scheduler.abort(victim)
        done += host.scheduler.step()
        host.scheduler.check_integrity()
        live = [r for r in live if r.phase is not Phase.DONE]
    assert not host.scheduler.busy
    for request in done:
        assert request.error is None
        assert request.output_ids == answer(request.spec.prompt_ids, request.spec.max_tokens, VOCAB, [5])
        assert request.counts.cached + request.counts.computed == request.n_prompt
    assert aborted["LOADING"] >= 10
    assert min(host.cache.events[o] for o in set(outcomes)) >= 20
    assert sum(r.counts.host for r in done) > 500
    assert host.scheduler.stats.preemptions > 10
    host.assert_idle()


# planted faults, each with the test that fails under it


def commit_without_comparing(self, request):
    """T3: the lock moves to whatever the insert gave, also to less than the request holds."""
    end = request.computed // PAGE * PAGE
    if end <= request.pages.cached_len:
        return
    old = request.lock
    result = self._cache.insert(request.ids()[:end], request.pages.values(end), request.spec.extra_key)
    lock = self._cache.lock_ref(self._cache.match_prefix(request.ids()[: result.length], request.spec.extra_key))
    request.pages.remap(lock)
    self._free(result.duplicates)
    self._cache.unlock_ref(old)
    request.lock = lock


def abort_keeps_the_ticket(self, request):
    """L5: the load of an aborted request is never withdrawn, and its lock never released."""
    self._free(request.pages.clear())
    request.ticket = None


def a_failed_load_counts_as_loaded(self, request):
    """B5: whatever became of the load, the request reads the pages."""
    ticket, request.ticket = request.ticket, None
    if not ticket.done:
        request.ticket = ticket
        return False
    self._start(request, ticket.lock, request.matched_device)
    return True


def others_give_way_at_once(self, request, n_tokens):
    """One request after another is preempted while pages are about to come free."""
    while not self._kv.grow(request, n_tokens):
        victim = self._running[-1]
        self._preempt(victim)
        if victim is request:
            return False
    return True


def the_load_fails():
    test_whatever_becomes_of_the_load_the_answer_is_right(["fail"], 0)


MUTANTS = [
    (KVManager, "commit_chunk", commit_without_comparing, test_a_lock_is_not_exchanged_for_a_shorter_one),
    (KVManager, "abort", abort_keeps_the_ticket, test_abort_while_loading_gives_everything_back),
    (
        KVManager,
        "finish_load",
        a_failed_load_counts_as_loaded,
        lambda: test_whatever_becomes_of_the_load_the_answer_is_right(["fail"], 0),
    ),
    (Scheduler, "_make_room", others_give_way_at_once, test_nobody_gives_way_for_pages_that_a_given_up_load_sets_free),
]


@pytest.mark.parametrize(("cls", "method", "fault", "directed"), MUTANTS, ids=[fault.__name__ for _, _, fault, _ in MUTANTS])
def test_planted_faults_are_found(monkeypatch, cls, method, fault, directed):
    directed()
    monkeypatch.setattr(cls, method, fault)
    with pytest.raises((AssertionError, IntegrityError, LockError)):
        directed()
