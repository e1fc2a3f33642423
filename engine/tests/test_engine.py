"""The whole engine on a real, tiny model: long random runs, accounting after every step, bounded compilation."""

from collections import Counter

import numpy as np
import pytest

from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.request import Phase, Request, RequestSpec, Sampling

VOCAB = 256


def make(model, *, cache_type="radix_cache", page_size=16, device_tokens=512, **more) -> Engine:
    config = EngineConfig(
        model="tiny", device_tokens=device_tokens, compilation_cache=None, **{"chunk_tokens": 32, "max_running": 4, **more}
    )
    return build_engine(CacheConfig(cache_type=cache_type, page_size=page_size), config, model)


def specs(seed: int, n: int, longest: int = 120) -> list[RequestSpec]:
    """Prompts that share beginnings, some drawn with temperature."""
    rng = np.random.default_rng(seed)
    families = [rng.integers(0, VOCAB, longest) for _ in range(3)]
    made = []
    for i in range(n):
        prompt = np.concatenate([families[i % 3][: rng.integers(1, longest)], rng.integers(0, VOCAB, rng.integers(0, 30))])
        sampling = Sampling() if i % 2 else Sampling(temperature=0.7, top_p=0.9, seed=i)
        made.append(
            RequestSpec(
                f"r{i}", prompt.astype(np.int32), int(rng.integers(1, 24)), sampling, extra_key=(b"tenant",) * (i % 5 == 4)
            )
        )
    return made


def check(engine: Engine) -> None:
    engine.scheduler.check_integrity()
    size = engine.cache.size("full")
    assert size.free + size.evictable + size.protected + size.in_flight + size.request_owned == size.total


def run(engine: Engine) -> list[Request]:
    done = []
    while engine.scheduler.busy:
        done += engine.scheduler.step()
        check(engine)
    return done


@pytest.fixture(scope="module")
def alone(qwen3):
    """Answers of requests that had the engine to themselves, without any reuse of prefixes."""
    engine = make(qwen3, cache_type="chunk_cache", page_size=16)
    answers = {}
    for spec in specs(5, 60):
        engine.scheduler.submit(spec)
        [request] = run(engine)
        answers[spec.id] = request.output_ids
    return answers


@pytest.mark.parametrize(
    ("cache_type", "page_size", "device_tokens", "hits"),
    [("chunk_cache", 16, 320, 0), ("radix_cache", 1, 230, 500), ("radix_cache", 16, 240, 500), ("radix_cache", 64, 256, 64)],
)
def test_long_random_run_with_aborts_and_preemption(qwen3, alone, cache_type, page_size, device_tokens, hits):
    engine = make(qwen3, cache_type=cache_type, page_size=page_size, device_tokens=device_tokens)
    rng = np.random.default_rng(page_size)
    todo, live, done, aborted = specs(5, 60), [], [], Counter()
    while todo or engine.scheduler.busy:
        while todo and len(live) < 7:
            live.append(engine.scheduler.submit(todo.pop(0)))
        if live and rng.random() < 0.04:
            phases = sorted({r.phase.name for r in live})
            phase = phases[int(rng.integers(len(phases)))]
            victim = next(r for r in live if r.phase.name == phase)
            live.remove(victim)
            aborted[phase] += 1
            engine.scheduler.abort(victim)
        done += engine.scheduler.step()
        check(engine)
        live = [r for r in live if r.phase is not Phase.DONE]
    assert {r.spec.id: r.output_ids for r in done} == {r.spec.id: alone[r.spec.id] for r in done}
    for request in done:
        assert request.error is None
        assert request.counts.cached + request.counts.computed == request.n_prompt
    assert sum(aborted.values()) >= 4
    assert engine.scheduler.stats.preemptions > 0
    assert engine.scheduler.stats.peak_running >= 2
    assert sum(r.counts.device for r in done) >= hits
    if hits:
        assert engine.cache.counters.device_evicted_tokens > 0
    size = engine.cache.size("full")
    assert size.free + size.evictable == size.total
    assert engine.cache.reset()


def test_tokens_are_counted_where_they_are_computed(qwen3):
    engine = make(qwen3, device_tokens=240)
    for spec in specs(9, 20):
        engine.scheduler.submit(spec)
    done = run(engine)
    assert engine.scheduler.stats.preemptions > 0
    counted = sum(r.counts.computed + r.counts.recomputed + r.counts.decoded for r in done)
    assert counted == engine.runner.tokens_computed


@pytest.mark.parametrize("cache_type", ["chunk_cache", "radix_cache", "unified_radix_cache"])
def test_a_second_pass_compiles_nothing(qwen3, cache_type):
    """Also where the second pass finds its prefixes cached, and so computes in other sizes than the first."""
    engine = make(qwen3, cache_type=cache_type, device_tokens=2000)
    counts, hits = [], []
    for _ in range(3):
        requests = [engine.scheduler.submit(spec) for spec in specs(9, 20)]
        run(engine)
        counts.append(engine.compile_count)
        hits.append(sum(r.counts.device for r in requests))
    assert counts[0] > 0
    assert counts == counts[:1] * 3
    assert cache_type == "chunk_cache" or hits[1] > hits[0]


def test_two_devices_give_the_answers_of_one(qwen3, mesh_of, qwen3_folder):
    from kvcache_engine.model.loaded import load_model

    split = load_model(qwen3_folder, mesh=mesh_of(2))
    answers = []
    for model in (qwen3, split):
        engine = make(model, device_tokens=400)
        for spec in specs(3, 12):
            engine.scheduler.submit(spec)
        answers.append({r.spec.id: r.output_ids for r in run(engine)})
    assert answers[0] == answers[1]
