"""What `kvcache run` shows beside its results: tables that hold their numbers, why nothing moves, help whose examples work."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kvcache_core.cli import build_parser
from kvcache_core.registry.default import default_registry
from kvcache_engine import cli, sweep_cli
from kvcache_engine.job import job_from_args
from kvcache_engine.report import request_table, summary_table
from kvcache_engine.results import RequestResult, failed, totals
from kvcache_engine.run import Working
from kvcache_engine.screen import Screen
from kvcache_engine.view import ProgressView


def result(prompt, device=0, computed=0, end="length"):
    return RequestResult("a", prompt, {"device": device, "host": 0, "storage": 0}, computed, 0, None, [], "", end, None)


def test_the_figures_of_an_interrupted_run_add_up():
    """One prompt got through, one was cut off within, one was loading, and one had not begun; and one failed."""
    ends = [result(100, 60, 40), result(50, 10, 5, "abort"), result(300, end="abort"), result(400, end="abort")]
    whole = totals([*ends, failed("b", "too long")])
    assert (whole["requests"], whole["aborted"], whole["not_begun"], whole["errors"]) == (5, 3, 2, 1)
    assert whole["prompt_tokens"] == 150
    assert whole["hit_rate"] == pytest.approx(70 / 150)
    rest = {"cache_type": "c", "page_size": 1, "tiers": {}, "scheduler": {"steps": 1, "preemptions": 0}, "cache": {}}
    printed = io.StringIO()
    Console(width=140, file=printed).print(
        summary_table({**whole, **rest, "wall_s": 1.0, "compiled_programs": 1, "storage": None})
    )
    assert "5, 1 failed, 3 aborted, 2 of them not begun\n" in re.sub(" +\n", "\n", printed.getvalue())
    assert "150: 45 computed, 70 saved (device 70, host 0, storage 0), 35 not reached" in printed.getvalue()
    assert "46.7% (device 46.7%, host 0.0%, storage 0.0%)" in printed.getvalue()


@pytest.mark.parametrize("width", [140, 80])
def test_numbers_are_never_wrapped_or_cut(width):
    result = RequestResult(
        "chiara#4", 10557, {"device": 10464, "host": 10064, "storage": 0}, 10029, 0, 22.31, [1], "long " * 90, "length", None
    )
    printed = io.StringIO()
    Console(width=width, file=printed).print(request_table([result] * 3))
    lines = printed.getvalue().rstrip().splitlines()
    assert len([line for line in lines if line.strip()]) == 5  # head, rule, three rows
    for number in ("10557", "10464", "10064", "10029", "22.31 s", "length"):
        assert printed.getvalue().count(f" {number} ") == 3


def test_a_long_load_is_said(capsys, monkeypatch):
    now = iter([0.0, 1.0, 2.5, 3.0, 9.0])
    monkeypatch.setattr("kvcache_engine.view.monotonic", lambda: next(now))
    with Screen(quiet=False) as screen:
        view = ProgressView(screen)
        for _ in range(4):
            view.working(Working(fetching=0, waiting=1, running=2, loading=2, pages_loading=64, tokens=7))
        view.working(Working(fetching=0, waiting=1, running=2, loading=1, pages_loading=32, tokens=7))  # the other one runs
        view.working(Working(fetching=0, waiting=1, running=2, loading=2, pages_loading=64, tokens=7))
    said = capsys.readouterr().err
    assert said == "still loading: 2 running, 2 of them loading 64 pages, 1 waiting, 7 tokens through the model\n"


def test_every_command_that_help_shows_would_run(tmp_path, monkeypatch):
    """Up to the model, which is not loaded: the files are there, the flags exist, and the cache can be built."""
    (tmp_path / "examples").symlink_to(Path(__file__).parents[2] / "examples")
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": "x"}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shown = [line.split()[1:] for line in f"{cli.EPILOG}\n{sweep_cli.EPILOG}".splitlines() if line.startswith("  kvcache ")]
    assert len(shown) >= 8
    for words in shown:
        args = build_parser(default_registry(), words[0]).parse_args(words)
        job = job_from_args(args, words[0])
        job.check_cache()
        assert job.lines, words


def test_help_has_examples_and_does_not_import_jax():
    code = (
        "import sys; from kvcache_core.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "kvcache run examples/quickstart.yaml" in done.stdout
    assert "--hicache-write-policy" in done.stdout
    assert "missing folders are made" in " ".join(done.stdout.split())
