"""A conversation on a model with recurrent states goes on where a snapshot is: at a prompt's last page boundary, at the last one
that an answer passed, and at every interval; from device memory, host memory and storage."""

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder
from kvcache_conformance.tiny_by_name import TINY_MODELS, resized
from kvcache_conformance.tiny_models import write_model_folder
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.model.loaded import LoadedModel, load_model
from kvcache_engine.request import Request, RequestSpec, Sampling

PAGE, INTERVAL, PROMPT, ANSWER = 16, 64, 209, 20


@pytest.fixture(scope="module")
def kimi(tmp_path_factory) -> LoadedModel:
    tiny = resized(TINY_MODELS["tiny-kimi-linear"]())
    return load_model(write_model_folder(tiny, tmp_path_factory.mktemp("models") / "kimi"))


@pytest.fixture(scope="module")
def plain(kimi) -> Engine:
    """Reuses nothing; its programs serve the others."""
    return build(kimi, {"cache_type": "chunk_cache"}, None)


def build(model, values, like) -> Engine:
    config = EngineConfig(
        model="test",
        device_tokens=2048,
        device_states=32,
        snapshot_interval=INTERVAL - 3,  # whole pages are made of it
        chunk_tokens=32,
        max_running=1,
        compilation_cache=None,
    )
    cache = CacheConfig.model_validate({"page_size": PAGE, **values})
    return build_engine(cache, config, model, sampler=LogitRecorder(), like=like)


def serve(engine: Engine, ids, n: int) -> Request:
    request = engine.scheduler.submit(RequestSpec("one", np.asarray(ids, np.int32), n, Sampling()))
    while engine.scheduler.busy:
        engine.scheduler.step()
        engine.scheduler.check_integrity()
    return request


@pytest.mark.parametrize("tier", ["device", "host", "storage"])
def test_how_far_a_conversation_is_reused(kimi, plain, tmp_path, tier):
    storage = {"kind": "file", "path": str(tmp_path)} if tier == "storage" else None
    hicache = {"storage": storage, "prefetch_threshold": PAGE, "prefetch_timeout": None}
    engine = build(kimi, {} if tier == "device" else {"hicache": hicache}, plain)
    prompt = np.random.default_rng(1).integers(0, 256, PROMPT)
    first = serve(engine, prompt, ANSWER)
    assert first.counts.cached == 0

    def reused(ids) -> int:
        if tier == "host":
            for name in engine.pools:
                engine.cache.evict(name, engine.cache.size(name).total)
            while any(engine.cache.size(name, "host").in_flight for name in engine.pools):
                engine.scheduler.step()
        elif tier == "storage":
            assert engine.cache.persist(60.0).remaining == 0
            assert engine.cache.reset()
        request = serve(engine, ids, 3)
        # What every other tier gave is nothing, and the answer is that of an engine without a cache.
        assert request.counts.cached == getattr(request.counts, tier)
        assert request.output_ids == serve(plain, ids, 3).output_ids
        return request.counts.cached

    # Computed were 209 tokens and 19 of the answer: 224 is the last page boundary in them, 208 that of the prompt.
    turn = np.concatenate([prompt, first.output_ids, prompt[:30]])
    assert reused(turn) == 224
    assert reused(prompt) == 208
    # The last token of a prompt is always computed, so the snapshot at 208 is of no use to a prompt of 208.
    assert reused(prompt[:-1]) == 192
    # Branches, over more than two intervals.
    for at, expected in ((200, 192), (191, 128), (128, 128), (127, 64), (63, 0)):
        assert reused(np.concatenate([prompt[:at], (prompt[at : at + 40] + 1) % 256])) == expected
    engine.cache.close()


def test_a_long_prompt_is_cut_where_snapshots_are(kimi, plain):
    """Chunks of 32 tokens end at 64, 128, 192 and, cut short, at 208, so that a state exists there."""
    before = plain.scheduler.stats.prefill_chunks
    serve(plain, np.arange(PROMPT) % 256, 1)
    assert plain.scheduler.stats.prefill_chunks - before == 8
