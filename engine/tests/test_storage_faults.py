"""S1: a storage that goes bad while requests are served. All end with the right tokens, and the summary says how it is."""

import io
import json

import pytest
from rich.console import Console

from kvcache_conformance.faulty_storage import FAULTS, FaultSwitch, registry_with_faulty_storage
from kvcache_conformance.storage_toy import ToyDisk
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.interrupt import Interrupt
from kvcache_engine.prompts_file import PromptLine, read_prompts
from kvcache_engine.report import summary_table
from kvcache_engine.results import RequestResult
from kvcache_engine.run import RunReport, Working, serve

PAGE = 16
ENGINE = EngineConfig(model="test", device_tokens=PAGE * 22, chunk_tokens=64, max_running=2, max_tokens=5, compilation_cache=None)
BAD = ("failing", "open", "retrying")
EXPECTED = {
    "hang": (BAD, "storage timeout"),
    "raise": (BAD, "storage error"),
    "short": (BAD, "storage answer"),
    "lie": (("ok", *BAD), "bad page: checksum"),
    "gone": (("ok", *BAD), None),  # an empty store is no fault of a look-up; only writing shows it
}
"""By fault: how the storage may be called in the end, and a reason that must be among the misses."""


class Watcher:
    """A `View` that turns the switch when the first request has ended."""

    def __init__(self, switch: FaultSwitch, fault) -> None:
        self.switch, self.fault, self.persists = switch, fault, 0

    def ready(self, engine: Engine, expected: int) -> None: ...
    def working(self, state: Working) -> None: ...

    def finished(self, result: RequestResult, done: int) -> None:
        self.switch.fault = self.fault

    def persisting(self, stored: int, remaining: int) -> None:
        self.persists += 1


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[PromptLine]:
    """Five conversations of four turns: too much for L1 and L2, and most turns are asked when the fault is there."""
    said = ("what do you know of tides and of the moon?", "and of ferries?", "of lighthouses, perhaps, or of fog?", "and maps?")
    items = [
        {"id": name, "messages": [{"role": "user", "content": f"{name} {text} {name * 3}"} for text in said]}
        for name in ("ada", "bruno", "chiara", "dmitri", "emma")
    ]
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    return list(read_prompts(path))


@pytest.fixture(scope="module")
def plain(qwen3, lines) -> tuple[Engine, list[list[int]]]:
    """An engine without reuse, and its answers."""
    engine = build_engine(CacheConfig(cache_type="chunk_cache", page_size=PAGE), ENGINE, qwen3)
    report = serve(engine, ENGINE, lines, Watcher(FaultSwitch(), None), Interrupt())
    return engine, [list(result.output_tokens) for result in report.requests]


@pytest.fixture
def run(qwen3, plain, lines):
    registry, disk = registry_with_faulty_storage(), ToyDisk()

    def with_fault(fault, on="insert", timeout=0.1) -> tuple[RunReport, FaultSwitch]:
        switch = FaultSwitch()
        values = {
            "cache_type": "unified_radix_cache",
            "page_size": PAGE,
            "hicache": {
                "storage": {"kind": "faulty", "disk": disk, "switch": switch},
                "ratio": 2.0,
                "backup_on": "insert",
                "persist_on": on,
                "prefetch_threshold": PAGE,
                "storage_timeout": timeout,
                "persist_timeout": 1.0,
            },
        }
        config = CacheConfig.model_validate(values, context={"registry": registry})
        engine = build_engine(config, ENGINE, qwen3, registry, like=plain[0])
        try:
            report = serve(engine, ENGINE, lines, Watcher(switch, fault), Interrupt())
        finally:
            switch.release()
        engine.cache.check_integrity()
        assert [list(result.output_tokens) for result in report.requests] == plain[1]
        for result in report.requests:
            assert result.error is None
            assert result.cached + result.computed_tokens == result.prompt_tokens
        return report, switch

    return with_fault


def shown(report: RunReport) -> str:
    text = io.StringIO()
    Console(width=200, file=text).print(summary_table(report.summary))
    return text.getvalue()


@pytest.mark.parametrize("on", ["insert", "evict"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_storage_that_goes_bad_costs_time_and_nothing_else(run, fault, on):
    good, _ = run(None, on, timeout=5.0)
    assert good.summary["cache"]["storage_state"] == "ok"
    assert good.summary["persisted"]["stored"] + good.summary["cache"]["storage_written_tokens"] > 0
    assert good.summary["persisted"]["remaining"] == 0

    report, switch = run(fault, on)
    assert switch.calls.total() > 0
    words, reason = EXPECTED[fault]
    state = report.summary["cache"]["storage_state"]
    assert state.split(":")[0] in words, state
    assert f"faulty: {state}" in shown(report)
    assert report.summary["cached_tokens"]["storage"] > 0  # before the fault
    misses = report.summary["cache"]["misses"]
    assert reason is None or misses[reason] > 0, misses


def test_without_a_fault_the_second_run_reuses_more(run):
    """The control for the test above: the same two runs, and storage serves the later turns as well."""
    run(None, "insert", timeout=5.0)
    bad, _ = run("gone", "insert")
    good, switch = run(None, "insert", timeout=5.0)
    assert switch.calls.total() == 0
    assert good.summary["cached_tokens"]["storage"] > bad.summary["cached_tokens"]["storage"]
    assert not good.summary["cache"]["misses"]
