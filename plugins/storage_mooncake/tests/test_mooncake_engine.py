"""Engines over one store: a second process reuses what the first has computed. A master that hangs, goes and comes back, a store
that is full, and a holder of pages that is gone, cost time and nothing else.
"""

from functools import partial
from typing import Any

import pytest

from kvcache_conformance.mooncake_servers import MooncakeHolder
from kvcache_conformance.server_process import started
from kvcache_conformance.shared_runs import check_two_processes
from kvcache_conformance.storage_bench import content, new_keys
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


def section(store, **options) -> dict[str, Any]:
    """What stands below `storage:`, with time-outs that suit a test."""
    return {"kind": "mooncake", **store.options(), "timeout": 1.5, **options}


def test_a_second_process_computes_what_a_page_trie_would(store, tmp_path):
    check_two_processes(section(store, timeout=4.0), tmp_path / "runs")


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


def _keeps_what_is_new(storage):
    keys = new_keys(8)
    storage.set(keys, [content(2**14)] * len(keys))
    return storage.exists(keys) == [True] * len(keys)


def test_a_master_that_hangs_during_a_run_and_goes_on(runs, own_store):
    run = runs.check_outage(section(own_store), own_store.master.pause, own_store.master.resume)
    assert run.misses["storage error"] > 0


def test_a_master_that_is_killed_during_a_run_and_started_again(runs, own_store):
    """It has forgotten all pages, and the engine writes anew."""
    run = runs.check_outage(section(own_store), own_store.master.kill, own_store.master.start, keeps=False)
    assert run.misses["storage error"] > 0


def test_a_master_that_never_comes_back(runs, own_store):
    run = runs.check_outage(section(own_store), own_store.master.kill, None, persist_timeout=1.0)
    assert own_store.options()["master"] in run.state
    assert run.summary["persisted"]["remaining"] > 0


@pytest.mark.slow
def test_a_full_store_costs_time_and_is_written_again_when_there_is_room(runs, keeping_store):
    """Half of its pages make place for another's, which is looked at, and so is the rest: all of that the store keeps.

    Slow, because what a full master lets go, and when, is its own affair: CI asks it of Redis, which refuses as it is told.
    """
    other = keeping_store.open(key_prefix="other/", timeout=2.0)
    filling: list[str] = []

    def fill() -> None:
        keeping_store.remove("[0-7]$")
        for size in (2**20, 2**14):
            for _ in range(1000):
                [key] = new_keys(1)
                try:
                    other.set([key], [content(size)])
                except OSError:
                    break
                # Near its limit the master may let a page go before it was looked at.
                if other.exists([key]) == [True]:
                    filling.append(key)
            else:
                raise AssertionError("the store refuses nothing")

    storage = section(keeping_store, timeout=1.0)
    for _ in range(2):
        runs.run(storage, Outage())
    run = runs.run(storage, Outage(fill), persist_timeout=5.0)
    # How much is left unwritten at the end is the master's affair: where it sees something to evict, it does.
    assert "open" in run.words
    other.delete(filling)
    until(lambda: _keeps_what_is_new(other))
    later = runs.run(storage, Outage())
    assert later.words == ("ok",)
    assert later.summary["persisted"]["remaining"] == 0


@pytest.mark.parametrize("how", ["kill", pytest.param("pause", marks=pytest.mark.slow)])
def test_one_holder_of_two_that_is_gone_leaves_the_others_pages(runs, quick_store, tmp_path, how):
    """Until the master notices, its pages are there and cannot be read, which takes time; then they are absent."""
    with started(lambda: MooncakeHolder(tmp_path / "gone", quick_store.master, 64)) as gone:
        looking, keys = quick_store.open(key_prefix="looked-at/"), new_keys(40)
        looking.set(keys, [content(100)] * len(keys))
        runs.run(section(quick_store), Outage())
        run = runs.run(section(quick_store), Outage(getattr(gone, how)))
        assert run.hits("before") > 0
        assert run.answers("gone") > 3
        assert run.misses.keys() & {"storage error", "page gone"}
        until(lambda: not all(looking.exists(keys)))
        later = runs.run(section(quick_store, timeout=4.0), Outage(), storage_timeout=5.0)
    assert 0 < sum(looking.exists(keys)) < len(keys)
    assert later.hits("before") > 0
    assert later.words == ("ok",)
