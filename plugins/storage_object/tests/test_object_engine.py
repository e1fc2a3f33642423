"""Engines over one store: a second process reuses what the first has computed. A server that hangs, goes, comes back or is full
costs time and nothing else.
"""

import itertools
from functools import partial

import obstore
import pytest

from kvcache_conformance.shared_runs import check_two_processes
from kvcache_conformance.storage_bench import content
from kvcache_conformance.storage_engine_runs import DEVICE_TOKENS, WITHOUT_REUSE, EngineRuns, Outage, write_prompts
from kvcache_conformance.storage_outages import until
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


def section(store) -> dict:
    """What stands below `storage:`, with time-outs that suit a test."""
    return {"kind": "object", **store.options(timeout=1.0, connect_timeout=0.5, retries=0)}


def test_a_second_process_computes_what_a_page_trie_would(store, tmp_path):
    check_two_processes({"kind": "object", **store.options()}, tmp_path / "runs")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> EngineRuns:
    folder = tmp_path_factory.mktemp("engine")
    model = load_model(str(write_model_folder(tiny_qwen3(), folder / "tiny-qwen3")))
    lines = read_prompts(write_prompts(folder / "prompts.jsonl"))
    build = partial(build_engine, engine=ENGINE, model=model, like=build_engine(WITHOUT_REUSE, ENGINE, model))
    return EngineRuns(lambda config, view: serve(build(config), ENGINE, lines, view, Interrupt()))


@pytest.fixture(autouse=True)
def _tried_again_soon(monkeypatch):
    """The breaker's usual ten seconds are long for a test."""
    monkeypatch.setattr(storage_tier, "GuardSettings", partial(GuardSettings, retry_after=0.2))


def test_a_server_that_hangs_during_a_run_and_goes_on(runs, own_store):
    run = runs.check_outage(section(own_store), own_store.server.pause, own_store.server.resume)
    assert run.misses["storage error"] > 0


def test_a_server_that_is_killed_during_a_run_and_started_again(runs, own_store):
    def come_back() -> None:
        """It listens, and finds its pages some moments later."""
        own_store.server.start()
        until(own_store.all_readable)

    run = runs.check_outage(section(own_store), own_store.server.kill, come_back)
    assert run.misses["storage error"] > 0


def test_a_server_that_never_comes_back(runs, own_store):
    run = runs.check_outage(section(own_store), own_store.server.kill, None)
    persisted = run.summary["persisted"]
    for said in (run.state, persisted["message"]):
        assert "cannot connect: Connection refused" in said
    assert persisted["dropped"]["the storage is unavailable"] > 0


def test_a_full_server_is_read_on(runs, small_store):
    filler = (f"somebody/{number}" for number in itertools.count())

    def fill() -> None:
        """Half of the pages go, and somebody else takes all the room there is."""
        pages = [meta["path"] for meta in small_store.objects() if "/16/" in meta["path"]]
        obstore.delete(small_store.client, pages[::2])
        refused = 0
        while refused < 10:
            refused = 0 if small_store.takes(next(filler), content(2**18)) else refused + 1

    runs.run(section(small_store), Outage())
    run = runs.run(section(small_store), Outage(fill))
    assert run.hits("before") > 0
    assert run.hits("gone") > 0
    assert "open" in run.words
    assert run.summary["cache"]["postponed"]["the storage did not take it"] > 0
