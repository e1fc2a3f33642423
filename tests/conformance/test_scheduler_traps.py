"""The engine's scheduler over real caches and memory by value: traps that only a whole step can show, and the faults that each
test is there for.
"""

import numpy as np

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import ids
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core import CacheConfig, build_kv_cache
from kvcache_engine.endings import Endings
from kvcache_engine.kv_manager import KVManager
from kvcache_engine.limits import Limits
from kvcache_engine.request import Phase, RequestSpec
from kvcache_engine.scheduler import Scheduler


class Executor:
    """Draws one token always, counts what it is given, and takes the pools in every step, as a forward does."""

    def __init__(self, host):
        self.host = host
        self.tokens = 0

    def execute(self, rows):
        self.tokens += sum(len(row.ids) for row in rows)
        self.host.idle()
        return [None if row.sampling is None else 7 for row in rows]

    def idle(self):
        self.host.idle()


def scheduler_over(cache, host, executor=None):
    kv = KVManager(cache, host.allocators, host.page_size, 4 * PAGE)
    limits = Limits(context=256, vocab_size=10_000, chunk_tokens=4 * PAGE, max_running=4)
    return Scheduler(
        cache, kv, executor or Executor(host), limits, Endings(set(), lambda tokens: "", 256), pause=lambda seconds: None
    )


def ask(scheduler, tokens, max_tokens=4):
    return scheduler.submit(RequestSpec("r", np.asarray(tokens, np.int32), max_tokens))


def radix(pages):
    host = HostModel(PAGE, (FULL,), pages)
    cache, executor = build_kv_cache(CacheConfig(cache_type="radix_cache", page_size=PAGE), host.deps()), Executor(host)
    return cache, executor, scheduler_over(cache, host, executor)


def run(scheduler):
    for _ in range(200):
        if not scheduler.busy:
            return
        scheduler.step()
        scheduler.check_integrity()
    raise AssertionError("the scheduler never came to rest")


def test_a_long_decode_collects_completions(tiered):
    """L6: copies of a prompt end while its request only decodes; nothing waits for another prefill."""
    world = tiered(TierSizes(PAGE, 32, 64, "insert"))
    scheduler = scheduler_over(world.cache, world.host)
    request = ask(scheduler, ids(1, 2, 3), 60)
    while request.phase is not Phase.DECODE:
        scheduler.step()
    assert world.cache.size("full", "host").in_flight == 3
    for _ in range(2):
        scheduler.step()
    size = world.cache.size("full", "host")
    assert (request.phase, size.in_flight, size.evictable) == (Phase.DECODE, 0, 3)
    assert scheduler.stats.prefill_chunks == 1
    run(scheduler)
    for _ in range(2):
        scheduler.step()
    assert world.script.quiet


def test_idle_steps_collect_completions(tiered):
    """L6: what a request left behind is committed although nothing runs any more."""
    world = tiered(TierSizes(PAGE, 32, 64, "insert"))
    scheduler = scheduler_over(world.cache, world.host)
    ask(scheduler, ids(1, 2, 3), 1)
    run(scheduler)
    for _ in range(2):
        scheduler.step()
    size = world.cache.size("full", "host")
    assert (size.in_flight, size.evictable) == (0, 3)


def test_a_request_that_has_to_wait_evicts_nothing():
    """T22, P6: what is needed is compared with what can be had before anything is evicted for it."""
    cache, _, scheduler = radix(8)
    ask(scheduler, ids(1, 2))
    run(scheduler)
    running = ask(scheduler, ids(3, 4, 5, 10), 12)
    scheduler.step()
    before = cache.size("full")
    waiting = ask(scheduler, ids(6, 7, 8, 9))
    scheduler.step()
    assert (waiting.phase, before.evictable) == (Phase.QUEUED, 2)
    assert cache.match_prefix(np.asarray(ids(1, 2), np.int32)).device_len == 8
    run(scheduler)
    assert (running.finish_reason, waiting.finish_reason) == ("length", "length")


def test_requests_that_share_a_prefix_report_what_was_not_computed():
    """P7: what is reported as a hit did not go through the model."""
    cache, executor, scheduler = radix(32)
    requests = [ask(scheduler, ids(1, 2, page)) for page in (3, 4, 5)]
    run(scheduler)
    assert [(r.counts.device, r.counts.computed) for r in requests] == [(0, 12), (8, 4), (8, 4)]
    # Of each answer of four tokens, the last one is drawn and not computed.
    assert executor.tokens == (12 + 4 + 4) + 3 * 3
    assert cache.reset()


class TestFaultsOfSteps(PlantedFaultTests):
    faults = (
        Fault(
            "L6: completions are collected by prefills alone",
            test_a_long_decode_collects_completions,
            Replacement(Scheduler, "step", "self._cache.poll()", "self._waiting and self._cache.poll()"),
        ),
        Fault(
            "L6: an idle step collects nothing",
            test_idle_steps_collect_completions,
            Replacement(Scheduler, "step", "self._cache.poll()", "self.busy and self._cache.poll()"),
        ),
        Fault(
            "T22: admission evicts before it compares",
            test_a_request_that_has_to_wait_evicts_nothing,
            Replacement(KVManager, "admit", "if self._short(request, match.device_len, start, running) or not", "if not"),
        ),
        Fault(
            "P7: the pages of a hit are computed again and reported as a hit",
            test_requests_that_share_a_prefix_report_what_was_not_computed,
            Replacement(KVManager, "_start", "request.computed = lock.length", "request.computed = 0"),
        ),
    )
