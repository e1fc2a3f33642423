"""B9, P5: many interleaved requests through a small L1, an L2 of any size and files, with aborts in every phase. Slower, never
stuck, never wrong, and nothing is left behind."""

from collections import Counter

import numpy as np
import pytest

from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.request import Phase, Request, RequestSpec, Sampling

PAGE, L1_PAGES = 16, 16
ENGINE = EngineConfig(model="test", device_tokens=PAGE * L1_PAGES, chunk_tokens=32, max_running=4, compilation_cache=None)
N = 60


def specs() -> list[RequestSpec]:
    """Five families of texts, cut anywhere and continued; every fifth belongs to a tenant."""
    rng = np.random.default_rng(12)
    families = [rng.integers(0, 256, 110) for _ in range(5)]
    made = []
    for i in range(N):
        prompt = np.concatenate([families[i % 5][: rng.integers(20, 110)], rng.integers(0, 256, rng.integers(1, 20))])
        extra_key = (b"tenant",) * (i % 5 == 4 and i % 2)
        made.append(RequestSpec(f"r{i}", prompt.astype(np.int32), int(rng.integers(1, 8)), Sampling(), extra_key=extra_key))
    return made


@pytest.fixture(scope="module")
def plain(qwen3) -> tuple[Engine, dict[str, list[int]]]:
    """An engine without reuse, and its answers."""
    engine = build_engine(CacheConfig(cache_type="chunk_cache", page_size=PAGE), ENGINE, qwen3)
    requests = [engine.scheduler.submit(spec) for spec in specs()]
    while engine.scheduler.busy:
        engine.scheduler.step()
    return engine, {request.spec.id: request.output_ids for request in requests}


def state_of(request: Request, fetching: bool) -> str:
    if request.phase is Phase.QUEUED:
        return "PREEMPTED" if request.preemptions else "FETCHING" if fetching else "QUEUED"
    return request.phase.name


def check(engine: Engine) -> None:
    engine.scheduler.check_integrity()
    for tier in ("device", "host"):
        size = engine.cache.size("full", tier)
        assert sum(size[:5]) == size.total


# L1 has 16 pages and a request up to 9: twice L1, as large, smaller than a request, one page.
@pytest.mark.parametrize("pages", [32, 16, 5, 1])
@pytest.mark.parametrize("on", ["insert", "evict"])
def test_random_requests_through_every_tier(qwen3, plain, tmp_path, pages, on):
    like, answers = plain
    hicache = {
        "storage": {"kind": "file", "path": str(tmp_path)},
        "ratio": pages / L1_PAGES,
        "backup_on": on,
        "persist_on": on,
        "prefetch_threshold": PAGE,
        "prefetch_timeout": None,  # a stall would last for ever, and be seen by the number of steps
    }
    config = CacheConfig.model_validate({"cache_type": "unified_radix_cache", "page_size": PAGE, "hicache": hicache})
    engine = build_engine(config, ENGINE, qwen3, like=like)
    rng = np.random.default_rng(pages)
    todo, live, done, aborted = 2 * specs(), [], [], Counter()
    for _ in range(60_000):
        while todo and len(live) < 7:
            live.append(engine.scheduler.submit(todo.pop(0)))
        if not live:
            break
        if rng.random() < 0.08:
            states = {state_of(r, bool(engine.scheduler.fetching)) for r in live}
            state = min(states, key=lambda name: (aborted[name], name))
            victim = next(r for r in live if state_of(r, bool(engine.scheduler.fetching)) == state)
            live.remove(victim)
            aborted[state] += 1
            engine.scheduler.abort(victim)
        done += engine.scheduler.step()
        check(engine)
        live = [r for r in live if r.phase is not Phase.DONE]
    else:
        raise AssertionError("stuck")
    for request in done:
        assert request.error is None
        assert request.output_ids == answers[request.spec.id]
        assert request.counts.cached + request.counts.computed == request.n_prompt
    assert len(done) + aborted.total() == 2 * N
    # How often a request is seen waiting for a file depends on the disk, so these say only that nothing was left out.
    assert aborted.total() >= 10
    assert {"PREFILL", "DECODE"} <= set(aborted)
    counters = engine.cache.counters
    assert counters.storage_written_tokens > 0
    assert not any(reason.startswith(("bad page", "storage")) for reason in counters.misses), counters.misses
    if pages >= 16:
        assert aborted["FETCHING"] >= 1
        assert sum(r.counts.storage for r in done) > 0
    report = engine.cache.persist(30.0)
    assert report.remaining == 0
    for _ in range(1000):
        # A copy to L2 of what storage has already is not waited for; each call takes at least one turn.
        if not any(engine.cache.size("full", tier).in_flight for tier in ("device", "host")):
            break
        engine.cache.persist(0.01)
    for tier in ("device", "host"):
        size = engine.cache.size("full", tier)
        assert size.protected == size.in_flight == size.request_owned == 0
    check(engine)
    engine.cache.close()
