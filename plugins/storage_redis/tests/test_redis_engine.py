"""Engines over one store: a second process reuses what the first has computed. A server that hangs, goes, comes back or is full,
and a node of three that is gone, cost time and nothing else.
"""

from functools import partial
from typing import Any

import pytest

from kvcache_conformance.redis_servers import wait_for_cluster
from kvcache_conformance.server_process import LOOPBACK
from kvcache_conformance.shared_runs import check_two_processes
from kvcache_conformance.storage_engine_runs import DEVICE_TOKENS, WITHOUT_REUSE, EngineRuns, write_prompts
from kvcache_conformance.tiny_models import tiny_qwen3, write_model_folder
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import build_engine
from kvcache_engine.interrupt import Interrupt
from kvcache_engine.model.loaded import load_model
from kvcache_engine.prompts_file import read_prompts
from kvcache_engine.run import serve
from kvcache_unified_hicache import storage_tier
from kvcache_unified_hicache.storage.guard import GuardSettings

ENGINE = EngineConfig(model="test", device_tokens=DEVICE_TOKENS, chunk_tokens=64, max_running=2, compilation_cache=None)


def section(server, **options) -> dict[str, Any]:
    """What stands below `storage:`, with time-outs that suit a test."""
    return {"kind": "redis", "host": LOOPBACK, "port": server.port, "socket_timeout": 0.5, **options}


def test_a_second_process_computes_what_a_page_trie_would(valkey, stores, tmp_path):
    check_two_processes(section(valkey, key_prefix=stores.prefix, socket_timeout=2.0), tmp_path / "runs")


@pytest.mark.slow
def test_a_second_process_finds_the_pages_on_a_cluster(cluster, stores, tmp_path):
    options = {"cluster": True, "key_prefix": stores.prefix, "socket_timeout": 2.0}
    check_two_processes(section(cluster[0], **options), tmp_path / "runs", persist_on="insert")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> EngineRuns:
    folder = tmp_path_factory.mktemp("engine")
    model = load_model(str(write_model_folder(tiny_qwen3(), folder / "tiny-qwen3")))
    lines = read_prompts(write_prompts(folder / "prompts.jsonl"))
    plain = build_engine(WITHOUT_REUSE, ENGINE, model)
    return EngineRuns(
        lambda config, view: serve(build_engine(config, ENGINE, model, like=plain), ENGINE, lines, view, Interrupt())
    )


@pytest.fixture(autouse=True)
def _tried_again_soon(monkeypatch):
    """The breaker's usual ten seconds are long for a test."""
    monkeypatch.setattr(storage_tier, "GuardSettings", partial(GuardSettings, retry_after=0.2))


def test_a_server_that_hangs_during_a_run_and_goes_on(runs, own_valkey):
    run = runs.check_outage(section(own_valkey), own_valkey.pause, own_valkey.resume)
    assert run.misses["storage error"] > 0


def test_a_server_that_is_killed_during_a_run_and_started_again(runs, own_valkey):
    run = runs.check_outage(section(own_valkey), own_valkey.kill, own_valkey.start, keeps=False)
    assert run.misses["storage error"] > 0


def test_a_server_that_never_comes_back(runs, own_valkey):
    run = runs.check_outage(section(own_valkey), own_valkey.kill, None)
    persisted = run.summary["persisted"]
    for said in (run.state, persisted["message"]):
        assert f"{LOOPBACK}:{own_valkey.port}: ConnectionError" in said
    assert persisted["dropped"]["the storage is unavailable"] > 0


def test_a_full_server_is_read_on_and_written_again_when_there_is_room(runs, own_valkey):
    def fill() -> None:
        """Half of the pages go, whose place somebody else takes."""
        names = own_valkey.ask("KEYS", "*")
        for name in sorted(names)[::2]:
            own_valkey.ask("DEL", name)
        info = own_valkey.ask("INFO", "memory").decode().splitlines()
        used = next(int(line.removeprefix("used_memory:")) for line in info if line.startswith("used_memory:"))
        own_valkey.ask("CONFIG", "SET", "maxmemory", used)

    run = runs.check_outage(section(own_valkey), fill, lambda: own_valkey.ask("CONFIG", "SET", "maxmemory", 0))
    assert run.hits("gone") > 0
    assert run.summary["cache"]["postponed"]["the storage did not take it"] > 0


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_one_node_of_three_that_is_gone_leaves_the_others_pages(runs, own_cluster, how):
    gone = own_cluster[1]

    def come_back() -> None:
        if how == "pause":
            gone.resume()
        else:
            gone.start()
        wait_for_cluster(own_cluster)

    run = runs.check_outage(section(own_cluster[0], cluster=True), getattr(gone, how), come_back, opens=False)
    assert run.summary["cache"]["postponed"]["the storage did not take it"] > 0
    assert f"{LOOPBACK}:{gone.port}: " in run.summary["persisted"]["message"]
