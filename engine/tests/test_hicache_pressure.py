"""L2 in bad circumstances: a full L1, and every size of L2 that is too small. Slower, never stuck, and the right answers."""

import numpy as np
import pytest

from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.request import Request, RequestSpec

PAGE, L1_PAGES = 16, 16


def specs() -> list[RequestSpec]:
    """Four texts of 6 to 8 pages, asked in turn three times, each time with a new end."""
    rng = np.random.default_rng(8)
    texts = [rng.integers(0, 256, 100 + 8 * i) for i in range(4)]
    return [
        RequestSpec(f"{i}.{turn}", np.concatenate([text, rng.integers(0, 256, 9)]).astype(np.int32), 6)
        for turn in range(3)
        for i, text in enumerate(texts)
    ]


def serve(engine: Engine, wanted) -> list[Request]:
    """Bounded: a step limit stands for "never stuck"."""
    requests = [engine.scheduler.submit(spec) for spec in wanted]
    for _ in range(4000):
        if not engine.scheduler.busy:
            break
        engine.scheduler.step()
        engine.scheduler.check_integrity()
        for tier in ("device", "host"):
            try:
                size = engine.cache.size("full", tier)
            except KeyError:
                continue
            assert sum(size[:5]) == size.total
    else:
        raise AssertionError("stuck")
    engine.cache.check_integrity()
    return requests


@pytest.fixture(scope="module")
def first(qwen3) -> Engine:
    """Lends its compiled programs to the others."""
    config = EngineConfig(model="test", device_tokens=PAGE * L1_PAGES, chunk_tokens=32, max_running=4, compilation_cache=None)
    return build_engine(CacheConfig(cache_type="chunk_cache", page_size=PAGE), config, qwen3)


@pytest.fixture(scope="module")
def expected(first) -> dict[str, list[int]]:
    """Answers without any reuse."""
    return {request.spec.id: request.output_ids for request in serve(first, specs())}


@pytest.fixture
def build(qwen3, first):
    def with_hicache(**hicache) -> Engine:
        config = EngineConfig(model="test", device_tokens=PAGE * L1_PAGES, chunk_tokens=32, max_running=4, compilation_cache=None)
        cache = CacheConfig(cache_type="unified_radix_cache", page_size=PAGE, hicache=HiCacheConfig(**hicache))
        return build_engine(cache, config, qwen3, like=first)

    return with_hicache


def check_answers(requests, expected) -> None:
    assert {r.spec.id: r.output_ids for r in requests} == expected
    for request in requests:
        assert request.error is None
        assert request.counts.cached + request.counts.computed == request.n_prompt


@pytest.mark.parametrize("on", ["insert", "evict"])
def test_a_full_but_evictable_l1_takes_hits_from_l2(build, expected, on):
    engine = build(ratio=8.0, backup_on=on, persist_on="never")
    requests = serve(engine, specs())
    check_answers(requests, expected)
    repeats = requests[4:]
    # All of the text but its last page, every time: L1 holds two texts of the four, and was full whenever one was loaded.
    assert sum(r.counts.cached for r in repeats) == sum((r.n_prompt - 9) // PAGE * PAGE for r in repeats)
    assert sum(r.counts.host for r in repeats) > sum(r.counts.device for r in repeats)
    [request] = serve(engine, specs()[:1])
    assert request.counts.host > 0
    size = engine.cache.size("full")
    assert size.free < 7  # less than what is loaded next: it has to evict
    [request] = serve(engine, specs()[1:2])
    assert request.counts.host >= 6 * PAGE - request.counts.device
    assert request.counts.computed <= PAGE
    engine.cache.close()


# L1 has 16 pages and a request 7 or 8: as large as L1, smaller, smaller than a request, one page.
@pytest.mark.parametrize("pages", [16, 12, 5, 1])
@pytest.mark.parametrize("on", ["insert", "evict"])
@pytest.mark.parametrize("pool", ["per_page", "preallocated"])
def test_an_l2_that_is_too_small(build, expected, pages, on, pool):
    engine = build(ratio=pages / L1_PAGES, backup_on=on, persist_on="never", host_pool=pool)
    assert engine.cache.size("full", "host").total == pages
    requests = serve(engine, specs())
    check_answers(requests, expected)
    # What L2 could not take is counted, and nothing stays behind.
    counters = engine.cache.counters
    assert counters.dropped.total() + counters.host_evicted_tokens > 0
    while engine.cache.size("full", "host").in_flight:
        engine.scheduler.step()
    for tier in ("device", "host"):
        size = engine.cache.size("full", tier)
        assert size.protected == size.in_flight == size.request_owned == 0
    engine.cache.close()
