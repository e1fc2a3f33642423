"""Engines over one store: a second process reuses what the first has computed. A server that hangs, goes, comes back or is full,
and a node of three that is gone, cost time and nothing else.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from kvcache_conformance.server_process import LOOPBACK
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


def section(server, **options) -> dict[str, Any]:
    """What stands below `storage:`, with time-outs that suit a test."""
    return {"kind": "redis", "host": LOOPBACK, "port": server.port, "socket_timeout": 1.0, **options}


def test_a_second_process_computes_what_a_page_trie_would(valkey, stores, tmp_path):
    check_two_processes(section(valkey, key_prefix=stores.prefix, socket_timeout=2.0), tmp_path / "runs")


@pytest.mark.slow
def test_a_second_process_finds_the_pages_on_a_cluster(cluster, stores, tmp_path):
    options = {"cluster": True, "key_prefix": stores.prefix, "socket_timeout": 2.0}
    check_two_processes(section(cluster[0], **options), tmp_path / "runs", persist_on="insert")


def specs() -> list[RequestSpec]:
    """Six texts, each in three lengths: more than L1 and L2 hold."""
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 256, 112).astype(np.int32) for _ in range(6)]
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


class Runs:
    """Engines with a storage beside one without, which says what every request has to answer."""

    def __init__(self, folder) -> None:
        self._model = load_model(str(write_model_folder(tiny_qwen3(), folder)))
        self._plain = build_engine(CacheConfig(cache_type="chunk_cache", page_size=PAGE), ENGINE, self._model)
        self.answers = serve(self._plain)

    def engine(self, storage: Mapping[str, Any]) -> Engine:
        hicache = {
            "storage": storage,
            "ratio": 1.0,
            "backup_on": "insert",
            "persist_on": "insert",
            "prefetch_threshold": PAGE,
            "prefetch_timeout": 1.0,
            "storage_timeout": 2.0,
        }
        values = {"cache_type": "unified_radix_cache", "page_size": PAGE, "hicache": hicache}
        return build_engine(CacheConfig.model_validate(values), ENGINE, self._model, like=self._plain)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(autouse=True)
def _tried_again_soon(monkeypatch):
    """The breaker's usual ten seconds are long for a test."""
    monkeypatch.setattr(storage_tier, "GuardSettings", partial(GuardSettings, retry_after=0.2))


def test_a_server_that_goes_and_comes_back_costs_no_request_anything_but_time(runs, own_valkey):
    engine = runs.engine(section(own_valkey))
    counters = engine.cache.counters
    assert serve(engine) == runs.answers
    assert engine.cache.persist(LONG).remaining == 0
    assert not counters.misses
    for go, come_back in ((own_valkey.pause, own_valkey.resume), (own_valkey.kill, own_valkey.start)):
        loaded, missed = counters.storage_loaded_tokens, counters.misses.total()
        assert serve(engine) == runs.answers
        assert counters.storage_loaded_tokens > loaded, "the pages of this test never come from storage"
        go()
        assert serve(engine) == runs.answers
        until(engine, "open")
        assert counters.misses.total() > missed
        come_back()
        until(engine, "ok")
    assert serve(engine) == runs.answers
    assert engine.cache.persist(LONG).remaining == 0
    loaded = counters.storage_loaded_tokens
    assert serve(engine) == runs.answers
    assert counters.storage_loaded_tokens > loaded
    assert not any(reason.startswith("bad page") for reason in counters.misses), counters.misses
    engine.cache.close()


def test_a_full_server_is_read_on_and_written_again_when_there_is_room(runs, own_valkey):
    engine = runs.engine(section(own_valkey))
    counters = engine.cache.counters
    # A page is 16 KiB of floats and a frame: room for about ten of the forty.
    used = dict(line.split(":", 1) for line in own_valkey.ask("INFO", "memory").decode().splitlines() if ":" in line)
    own_valkey.ask("CONFIG", "SET", "maxmemory", int(used["used_memory"]) + 200_000)
    assert serve(engine) == runs.answers
    until(engine, "open: write")
    assert "OutOfMemoryError" in counters.storage_state
    assert own_valkey.ask("DBSIZE") > 3
    loaded = counters.storage_loaded_tokens
    assert serve(engine) == runs.answers
    assert counters.storage_loaded_tokens > loaded
    own_valkey.ask("CONFIG", "SET", "maxmemory", 0)
    until(engine, "ok")
    stored = own_valkey.ask("DBSIZE")
    assert serve(engine) == runs.answers
    assert engine.cache.persist(LONG).remaining == 0
    assert own_valkey.ask("DBSIZE") > stored
    engine.cache.close()


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_one_node_of_three_that_is_gone_leaves_the_others_pages(runs, own_cluster, how):
    engine = runs.engine(section(own_cluster[0], cluster=True))
    counters = engine.cache.counters
    assert serve(engine) == runs.answers
    assert engine.cache.persist(LONG).remaining == 0
    getattr(own_cluster[1], how)()
    loaded = counters.storage_loaded_tokens
    for _ in range(3):
        assert serve(engine) == runs.answers
        assert counters.storage_state == "ok"
    assert counters.storage_loaded_tokens > loaded, "no page of the nodes that are left was found"
    assert not any(reason.startswith("bad page") for reason in counters.misses), counters.misses
    if how == "pause":
        own_cluster[1].resume()
    engine.cache.close()
