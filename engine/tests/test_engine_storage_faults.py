"""S1: a storage that goes bad while requests are served. All end with the right tokens, and the summary says how it is."""

import io
import json
import signal
import subprocess
import sys

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
    """A `View` that turns the switch when the first request has ended, and presses Ctrl-C while pages are stored."""

    def __init__(self, switch: FaultSwitch, fault, stop=None) -> None:
        self.switch, self.fault, self.stop = switch, fault, stop

    def ready(self, engine: Engine, expected: int) -> None: ...
    def working(self, state: Working) -> None: ...

    def finished(self, result: RequestResult, done: int) -> None:
        self.switch.fault = self.fault

    def persisting(self, stored: int, remaining: int) -> None:
        if self.stop is not None:
            self.stop.press()


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

    def with_fault(fault, on="insert", timeout=0.1, persist_timeout=1.0, stop=None) -> tuple[RunReport, FaultSwitch]:
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
                "prefetch_timeout": 0.5,
                "storage_timeout": timeout,
                "persist_timeout": persist_timeout,
            },
        }
        config = CacheConfig.model_validate(values, context={"registry": registry})
        engine = build_engine(config, ENGINE, qwen3, registry, like=plain[0])
        try:
            report = serve(engine, ENGINE, lines, Watcher(switch, fault, stop), stop or Interrupt())
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


class Pressed:
    """Ctrl-C: `requested` from the first press on; a second one would end the process, and here the test."""

    def __init__(self) -> None:
        self.requested = False

    def press(self) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def test_ctrl_c_while_pages_are_stored_leaves_the_rest(run):
    """With a storage that hangs there would be a minute to wait, here and again where the cache is closed."""
    report, switch = run("hang", "evict", timeout=60.0, persist_timeout=60.0, stop=Pressed())
    assert switch.calls.total() > 0
    persisted = report.summary["persisted"]
    assert persisted["remaining"] > 0
    assert "pages left behind" in shown(report)


# A process: what has to be seen is that it ends, whatever its threads are waiting for.
HANGING = """
import sys
from pathlib import Path
from kvcache_conformance.faulty_storage import FaultSwitch, registry_with_faulty_storage
from kvcache_conformance.storage_toy import ToyDisk
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import build_engine, load_engine_model
from kvcache_engine.interrupt import Interrupt
from kvcache_engine.prompts_file import read_prompts
from kvcache_engine.run import serve

folder, prompts = map(Path, sys.argv[1:])
switch, registry = FaultSwitch(), registry_with_faulty_storage()
storage = {"kind": "faulty", "disk": ToyDisk(), "switch": switch}
hicache = {"storage": storage, "storage_timeout": 600.0, "persist_timeout": 600.0}
values = {"cache_type": "unified_radix_cache", "hicache": hicache}
config = CacheConfig.model_validate(values, context={"registry": registry})
settings = EngineConfig(model=str(folder), device_tokens=512, chunk_tokens=16, max_running=1, compilation_cache=None)

class View:
    def ready(self, engine, expected): ...
    def working(self, state): ...
    def finished(self, result, done):
        switch.fault = "hang"
        print("served", flush=True)
    def persisting(self, stored, remaining):
        print("storing", remaining, flush=True)

with Interrupt() as interrupt:
    engine = build_engine(config, settings, load_engine_model(settings, folder), registry)
    serve(engine, settings, read_prompts(prompts), View(), interrupt)
sys.exit("nobody interrupted it")
"""


def test_a_second_ctrl_c_leaves_at_once_even_if_storage_hangs(qwen3_folder, tmp_path):
    items = [{"id": "quick", "prompt": list(range(40)), "max_tokens": 1}, {"id": "slow", "prompt": "y" * 30, "max_tokens": 400}]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, items)), encoding="utf-8")
    command = [sys.executable, "-c", HANGING, str(qwen3_folder), str(prompts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "served\n"
        process.send_signal(signal.SIGINT)  # ends the serving; what was computed is to be stored, which hangs
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert line.startswith("storing "), stderr
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
