"""Reused pages change nothing: logits with radix_cache against chunk_cache at every generated position, and a control."""

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder, compare, kl_divergence
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.request import Request, RequestSpec, Sampling

LIMIT = 1e-6


def conversations(vocab: int, page: int, families: int, turns: int) -> list[RequestSpec]:
    """Prompts that grow turn by turn within a family; all families share a beginning, and branch inside and at page borders."""
    rng = np.random.default_rng(page)
    shared = rng.integers(0, vocab, 2 * page + 7)
    made = []
    for family in range(families):
        text = np.concatenate([shared[: len(shared) - family % 3], rng.integers(0, vocab, page // 2 + 5)])
        for turn in range(turns):
            text = np.concatenate([text, rng.integers(0, vocab, page // 3 + 9 + turn)])
            seed = family * turns + turn
            made.append(RequestSpec(f"{family}#{turn}", text.astype(np.int32), 14 + seed % 9 + page, Sampling(seed=seed)))
    return made


def run(model, cache_type, page_size, device_tokens, specs, recorder, **more) -> tuple[Engine, list[Request]]:
    options = {"chunk_tokens": 32, "max_running": 4, **more}
    config = EngineConfig(model="tiny", device_tokens=device_tokens, compilation_cache=None, **options)
    engine = build_engine(CacheConfig(cache_type=cache_type, page_size=page_size), config, model, sampler=recorder)
    done = []
    for spec in specs:
        engine.scheduler.submit(spec)
    while engine.scheduler.busy:
        done += engine.scheduler.step()
        engine.scheduler.check_integrity()
    return engine, done


def check_equivalence(model, page_size, device_tokens, specs, **more):
    reference = LogitRecorder()
    _, expected = run(model, "chunk_cache", page_size, 4 * device_tokens, specs, reference, **more)
    recorder = LogitRecorder(forced=reference.tokens)
    engine, done = run(model, "radix_cache", page_size, device_tokens, specs, recorder, **more)

    worst, places = compare(reference, recorder)
    assert worst <= LIMIT
    assert places == sum(len(r.output_ids) for r in expected)
    assert recorder.tokens == reference.tokens  # greedy tokens, not only the forced ones
    assert {r.spec.id: r.output_ids for r in done} == {r.spec.id: r.output_ids for r in expected}

    # That all this happened on the way, or the comparison would prove nothing.
    prompt = sum(r.n_prompt for r in done)
    decoded = sum(r.counts.decoded for r in done)
    recomputed = sum(r.counts.recomputed for r in done)
    computed = engine.runner.tokens_computed - decoded - recomputed
    assert computed + sum(r.counts.device for r in done) == prompt
    assert computed <= prompt / 2
    stats = engine.scheduler.stats
    assert stats.prefill_chunks > len(specs)
    assert stats.peak_running >= 3
    assert stats.preemptions > 0
    assert engine.cache.counters.device_evicted_tokens > 0


@pytest.mark.parametrize(("page_size", "device_tokens"), [(1, 140), (16, 224), (64, 704)])
def test_tiny_model(qwen3, page_size, device_tokens):
    check_equivalence(qwen3, page_size, device_tokens, conversations(256, page_size, families=5, turns=5))


@pytest.mark.real_model
def test_smollm2(smollm2):
    check_equivalence(smollm2, 16, 224, conversations(40_000, 16, families=4, turns=5))


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_a_foreign_page_is_seen(qwen3, page_size):
    """The control: were the reused pages not read, exchanging one of them would change nothing."""
    text = np.random.default_rng(2).integers(0, 256, 3 * page_size + 40).astype(np.int32)
    other = np.random.default_rng(3).integers(0, 256, 3 * page_size + 40).astype(np.int32)
    specs = [RequestSpec("first", text, 8, Sampling(seed=1)), RequestSpec("foreign", other, 8, Sampling(seed=2))]
    recorder = LogitRecorder()
    engine, _ = run(qwen3, "radix_cache", page_size, 20 * page_size + 400, specs, recorder)
    first = {place: rows[-1] for place, rows in recorder.logits.items() if place[0] == 1}

    def repeat() -> float:
        """Serve the first prompt again, from the cache, and compare with how it was served at first."""
        request = engine.scheduler.submit(specs[0])
        while engine.scheduler.busy:
            engine.scheduler.step()
        assert request.counts.device >= 2 * page_size
        return max(kl_divergence(row, recorder.logits[place][-1]) for place, row in first.items())

    assert repeat() <= LIMIT
    lock, foreign = (engine.cache.lock_ref(engine.cache.match_prefix(ids)) for ids in (text, other))
    assert lock is not None
    assert foreign is not None
    mine, theirs = lock.segment("full").indices, foreign.segment("full").indices
    assert mine[1] not in theirs
    buffers = engine.pool_set.take()
    pool = engine.pools["full"]
    pages = pool.gather(buffers["full"], theirs[1:2])
    engine.pool_set.give({"full": pool.scatter(buffers["full"], mine[1:2], pages)})
    engine.cache.unlock_ref(lock)
    engine.cache.unlock_ref(foreign)
    assert repeat() > 1e-2
