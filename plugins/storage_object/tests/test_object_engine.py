"""Engines over one store: a second process reuses what the first has computed; a server that goes costs time and nothing else."""

import time
from functools import partial

import numpy as np

from kvcache_conformance.shared_runs import check_two_processes
from kvcache_conformance.tiny_models import tiny_qwen3, write_model_folder
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.model.loaded import load_model
from kvcache_engine.request import RequestSpec, Sampling
from kvcache_unified_hicache import storage_tier
from kvcache_unified_hicache.storage.guard import GuardSettings

PAGE = 16
ENGINE = EngineConfig(model="test", device_tokens=16 * PAGE, chunk_tokens=64, max_running=2, compilation_cache=None)
LONG = 60.0


def test_a_second_process_computes_what_a_page_trie_would(store, tmp_path):
    check_two_processes({"kind": "object", **store.options()}, tmp_path / "runs")


def specs() -> list[RequestSpec]:
    """Four texts with a beginning of their own, each in three lengths: more than L1 and L2 hold."""
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 256, 112).astype(np.int32) for _ in range(4)]
    return [RequestSpec(f"{n} to {end}", text[:end], 4, Sampling()) for end in (112, 96, 80) for n, text in enumerate(texts)]


def serve(engine: Engine) -> dict[str, list[int]]:
    """Every request is answered, with the accounts in order after each step."""
    requests = [engine.scheduler.submit(spec) for spec in specs()]
    while engine.scheduler.busy:
        engine.scheduler.step()
        engine.scheduler.check_integrity()
    for request in requests:
        assert request.error is None
        assert request.counts.cached + request.counts.computed == request.n_prompt
    return {request.spec.id: request.output_ids for request in requests}


def until(engine: Engine, word: str) -> None:
    """Until the storage is called that, with an engine that does nothing else."""
    end = time.monotonic() + LONG
    while not engine.cache.counters.storage_state.startswith(word):
        assert time.monotonic() < end, f"the storage is '{engine.cache.counters.storage_state}', not '{word}'"
        engine.cache.persist(0.01)


def test_a_server_that_goes_and_comes_back_costs_no_request_anything_but_time(own_store, tmp_path, monkeypatch):
    """Stopped and resumed, killed and started again: all tokens are right, the storage is left alone, and taken up again."""
    # A breaker that tries again at once: the usual ten seconds are long for a test.
    monkeypatch.setattr(storage_tier, "GuardSettings", partial(GuardSettings, retry_after=0.2))
    write_model_folder(tiny_qwen3(), tmp_path / "model")
    model = load_model(str(tmp_path / "model"))
    plain = build_engine(CacheConfig(cache_type="chunk_cache", page_size=PAGE), ENGINE, model)
    answers = serve(plain)
    hicache = {
        "storage": {"kind": "object", **own_store.options(timeout=0.5, connect_timeout=0.5, retries=0)},
        "ratio": 1.0,
        "backup_on": "insert",
        "persist_on": "insert",
        "prefetch_threshold": PAGE,
        "prefetch_timeout": 1.0,
        "storage_timeout": 1.0,
    }
    values = {"cache_type": "unified_radix_cache", "page_size": PAGE, "hicache": hicache}
    engine = build_engine(CacheConfig.model_validate(values), ENGINE, model, like=plain)
    counters, server = engine.cache.counters, own_store.server
    assert serve(engine) == answers
    assert engine.cache.persist(LONG).remaining == 0
    assert not counters.misses

    for go, come_back in ((server.pause, server.resume), (server.kill, server.start)):
        loaded, missed = counters.storage_loaded_tokens, counters.misses.total()
        assert serve(engine) == answers
        assert counters.storage_loaded_tokens > loaded, "the pages of this test never come from storage"
        go()
        assert serve(engine) == answers
        until(engine, "open")
        assert counters.misses.total() > missed
        come_back()
        until(engine, "ok")
    assert serve(engine) == answers
    assert not any(reason.startswith("bad page") for reason in counters.misses), counters.misses
    engine.cache.close()
