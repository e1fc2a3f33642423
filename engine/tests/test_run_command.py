"""`kvcache run` as its user meets it, on a tiny real model: results, bad input, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from kvcache_core.cli import main

CONFIG = """\
cache_type: {cache_type}
page_size: 16
engine:
  model: {model}
  prompts: prompts.jsonl
  device_tokens: {device_tokens}
  chunk_tokens: 32
  max_tokens: 8
  compilation_cache: null
"""
SYSTEM = "You answer in the fewest words you can find, and never twice in the same way. "
PROMPTS = [
    {"id": "text", "prompt": "a text of a few bytes"},
    {"id": "ids", "prompt": [1, 2, 3, 4], "max_tokens": 3},
    {"id": "drawn", "prompt": SYSTEM, "temperature": 0.9, "top_p": 0.8, "seed": 3},
    {"id": "again", "prompt": SYSTEM, "temperature": 0.9, "top_p": 0.8, "seed": 3},
    {"id": "tenant", "prompt": SYSTEM, "extra_key": ["lora", "tenant"], "max_tokens": 2},
]


@pytest.fixture
def folder(tmp_path, qwen3_folder):
    def make(prompts=PROMPTS, cache_type="radix_cache", device_tokens=640, model=qwen3_folder) -> Path:
        lines = [p if isinstance(p, str) else json.dumps(p) for p in prompts]
        (tmp_path / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
        config = tmp_path / "cache.yaml"
        config.write_text(CONFIG.format(cache_type=cache_type, model=model, device_tokens=device_tokens), encoding="utf-8")
        return config

    return make


def run(config, *more) -> tuple[int, dict]:
    out = config.parent / "out" / "result.json"
    status = main(["run", str(config), "--json", str(out), *more])
    return status, json.loads(out.read_text(encoding="utf-8"))


def test_the_json_holds_every_request_in_order(folder, capsys):
    status, data = run(folder())
    assert status == 0
    requests, summary = data["requests"], data["summary"]
    assert [r["id"] for r in requests] == [p["id"] for p in PROMPTS]
    assert set(requests[0]) == {
        *("id", "prompt_tokens", "cached_tokens", "computed_tokens", "recomputed_tokens"),
        *("ttft_s", "output_tokens", "text", "finish_reason", "error"),
    }
    for r in requests:
        assert r["error"] is None
        assert set(r["cached_tokens"]) == {"device", "host", "storage"}
        assert sum(r["cached_tokens"].values()) + r["computed_tokens"] == r["prompt_tokens"]
        assert 0 < r["ttft_s"] < 60
        assert r["finish_reason"] in ("length", "stop")
    by_id = {r["id"]: r for r in requests}
    assert len(by_id["ids"]["output_tokens"]) == 3
    assert by_id["drawn"]["output_tokens"] == by_id["again"]["output_tokens"]
    assert by_id["again"]["cached_tokens"]["device"] == len(SYSTEM) // 16 * 16
    assert sum(by_id["tenant"]["cached_tokens"].values()) == 0  # another extra_key never hits
    assert summary["cache_type"] == "radix_cache"
    assert summary["prompt_tokens"] == sum(r["prompt_tokens"] for r in requests)
    assert summary["cached_tokens"]["device"] == sum(r["cached_tokens"]["device"] for r in requests)
    assert summary["attention_tokens"] >= summary["computed_tokens"]
    assert summary["ttft_with_hit_s"] is not None
    assert summary["cache"]["inserted_tokens"] > 0
    printed = capsys.readouterr()
    assert "hit rate" in printed.out
    assert "again" in printed.out
    assert "text: 0 of" in printed.err


def test_radix_cache_saves_what_chunk_cache_computes_and_answers_the_same(folder, capsys):
    def talk(name):
        said = ("which tides are the highest?", "and which the lowest?", "thank you")
        messages = [{"role": "system", "content": SYSTEM}, *({"role": "user", "content": f"{name}: {text}"} for text in said)]
        return {"id": name, "messages": messages}

    config = folder([talk("ada"), talk("bo"), *PROMPTS])
    results = {}
    for cache_type in ("chunk_cache", "radix_cache"):
        status, results[cache_type] = run(config, "--cache-type", cache_type)
        assert status == 0
        printed = capsys.readouterr()
        saved = sum(results[cache_type]["summary"]["cached_tokens"].values())
        assert f" {saved} saved (device {saved}, host 0, storage 0)" in printed.out
    chunk, radix = (results[name]["requests"] for name in ("chunk_cache", "radix_cache"))
    assert [r["output_tokens"] for r in radix] == [r["output_tokens"] for r in chunk]
    assert [r["text"] for r in radix] == [r["text"] for r in chunk]
    assert all(sum(r["cached_tokens"].values()) == 0 for r in chunk)
    for name in ("ada", "bo"):
        turns = [r for r in radix if r["id"].startswith(name)]
        for before, after in pairwise(turns):
            assert after["cached_tokens"]["device"] >= before["prompt_tokens"] // 16 * 16
    for name in results:
        summary = results[name]["summary"]
        assert summary["cache_type"] == name
        assert sum(summary["cached_tokens"].values()) + summary["computed_tokens"] == summary["prompt_tokens"]
    hit_rate = results["radix_cache"]["summary"]["hit_rate"]
    assert hit_rate > 0.4 > results["chunk_cache"]["summary"]["hit_rate"] == 0


def test_hicache_is_shown_at_start_and_at_the_end(folder, capsys):
    long = [
        {"id": f"{turn}.{name}", "prompt": f"{name} {SYSTEM * 2}", "max_tokens": 4} for turn in range(2) for name in ("ada", "bo")
    ]
    flags = ["--hicache-ratio", "3", "--set", "engine.max_running=1"]
    status, data = run(folder(long, cache_type="unified_radix_cache", device_tokens=240), *flags)
    assert status == 0
    summary, tokens = data["summary"], sum(r["cached_tokens"]["host"] for r in data["requests"])
    page_bytes = 2 * 2 * 16 * 2 * 32 * 4  # keys and values, layers, tokens, heads, head_dim, float32
    assert summary["tiers"] == {
        "device": {"pages": 15, "units": {"full": 15}, "bytes": 15 * page_bytes},
        "host": {"pages": 45, "units": {"full": 45}, "bytes": 45 * page_bytes},
    }
    assert tokens == summary["cached_tokens"]["host"] > 0
    for direction, counter in (("d2h", "host_written_tokens"), ("h2d", "host_loaded_tokens")):
        moved = summary["movements"][direction]
        assert moved["bytes"] == summary["cache"][counter] // 16 * page_bytes > 0
        assert moved["bytes_per_s"] == pytest.approx(moved["bytes"] / moved["seconds"])
    assert summary["movements"]["store"] == {"bytes": 0, "seconds": 0.0, "bytes_per_s": None}
    printed = capsys.readouterr()
    assert re.search(r"^model   \S+ \(qwen3, 2 layers\)$", printed.err, re.MULTILINE)
    assert "cache   unified_radix_cache, page size 16" in printed.err
    assert "tiers   L1 15 pages (240.0 KiB), L2 45 pages (720.0 KiB)" in printed.err
    assert "hicache L1 to L2 on insert, L2 to L3 never; per_page host memory, future waits; storage none" in printed.err
    assert re.search(r"1\.ada: \d+ of \d+ prompt tokens cached \((device \d+, )?host \d+\)", printed.err)
    for line in ("L1 to L2", "L2 to L1", "evicted", "dropped"):
        assert line in printed.out
    assert f"host {tokens}," in printed.out


def test_warnings_of_the_cache_are_shown_even_to_the_quiet(folder, capsys):
    config = folder(PROMPTS[:1], cache_type="unified_radix_cache")
    assert main(["run", str(config), "--quiet", "--hicache-ratio", "0.5"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "warning: L2 holds 20 pages" in printed.err


def test_flags_win_over_the_file_and_quiet_is_quiet(folder, capsys):
    config = folder()
    other = config.parent / "other.jsonl"
    other.write_text('{"id": "other", "prompt": "x"}', encoding="utf-8")
    flags = ["--cache-type", "chunk_cache", "--set", "engine.max_tokens=2"]
    status = main(["run", str(config), "--prompts", str(other), "--json", "-", "--quiet", *flags])
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert status == 0
    assert printed.err == ""
    assert data["summary"]["cache_type"] == "chunk_cache"
    assert [(r["id"], len(r["output_tokens"])) for r in data["requests"]] == [("other", 2)]


def test_decode_mode_is_served_by_chunk_cache(folder):
    config = folder(PROMPTS[:2])
    config.write_text(
        config.read_text(encoding="utf-8").replace("cache_type: radix_cache", "disaggregation_mode: decode"), encoding="utf-8"
    )
    status, data = run(config, "--quiet")
    assert status == 0
    assert data["summary"]["cache_type"] == "chunk_cache"


def test_conversation_turns_follow_each_other_and_feed_answers_back(folder):
    user = {"role": "user", "content": "tell me something about tides and the moon"}
    status, data = run(folder([{"id": "chat", "messages": [{"role": "system", "content": SYSTEM}, user, user, user]}]), "--quiet")
    first, second, third = data["requests"]
    assert status == 0
    assert [first["id"], second["id"], third["id"]] == ["chat#1", "chat#2", "chat#3"]
    assert first["prompt_tokens"] < second["prompt_tokens"] < third["prompt_tokens"]
    assert second["cached_tokens"]["device"] >= first["prompt_tokens"] - 1 - 16
    assert third["cached_tokens"]["device"] >= second["prompt_tokens"] // 2


def test_bad_requests_are_named_and_the_others_go_on(folder, capsys):
    bad = [
        {"id": "good", "prompt": "x"},
        '{"id": "broken", "prompt": ',
        {"id": "typo", "prompt": "x", "max_token": 3},
        {"id": "long", "prompt": "y" * 600},
        {"id": "empty", "prompt": ""},
        {"id": "foreign", "prompt": [999]},
        {"id": "too big", "prompt": "z" * 500, "max_tokens": 200},
        {"id": "last", "prompt": "x"},
    ]
    config = folder(bad, device_tokens=400)
    status, data = run(config)
    assert status == 1
    errors = {r["id"]: r["error"] for r in data["requests"]}
    assert [r["id"] for r in data["requests"]] == ["good", "line 2", "typo", "long", "empty", "foreign", "too big", "last"]
    assert errors["good"] is None
    assert errors["last"] is None
    assert "prompts.jsonl:2:" in errors["line 2"]
    assert "max_token" in errors["typo"]
    assert "context holds 512" in errors["long"]
    assert "empty" in errors["empty"]
    assert "token ids" in errors["foreign"]
    assert "device pool" in errors["too big"]
    assert data["summary"]["errors"] == 6
    assert "prompts.jsonl:2:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("  model: ", "  model: missing-"), "missing-"),
        (("chunk_tokens: 32", "chunk_tokens: many"), "engine.chunk_tokens"),
        (("  model: ", "  moddel: "), "did you mean"),
        (("prompts.jsonl", "absent.jsonl"), "absent.jsonl"),
        (("cache_type: radix_cache", "cache_type: radix_cach"), "radix_cach"),
        (("page_size: 16", "page_size: 0"), "page_size"),
        (("  device_tokens: 640", "  tensor: 64"), "64 devices"),
        (("  device_tokens: 640", "  tensor: 3"), "2 kv heads cannot be laid out on 3"),
        (("  device_tokens: 640", "  device_tokens: 1000000000000"), "cache.yaml:6:18: engine.device_tokens"),
        (("  device_tokens: 640", "  context: 100000"), "more than the model's context, which holds 512"),
        (("compilation_cache: null", "compilation_cache: prompts.jsonl/x"), "engine.compilation_cache: cannot make the folder"),
    ],
)
def test_a_run_that_cannot_start_exits_2_without_a_traceback(folder, capsys, change, text):
    config = folder()
    config.write_text(config.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    assert main(["run", str(config)]) == 2
    printed = capsys.readouterr()
    assert text in printed.err
    assert "Traceback" not in printed.err


def test_a_file_without_the_engine_section_says_what_is_missing(folder, capsys):
    config = folder()
    config.write_text("page_size: 16\n", encoding="utf-8")
    assert main(["run", str(config)]) == 2
    assert "`engine:`" in capsys.readouterr().err


def test_a_missing_cache_type_is_refused_before_the_model_is_loaded(folder, capsys):
    config = folder(cache_type="no_such_cache")
    assert main(["run", str(config)]) == 2
    printed = capsys.readouterr().err
    assert "cache.yaml:1:13: cache_type" in printed
    assert "reading tensors" not in printed


def test_json_on_standard_output_is_json_and_markup_in_an_id_is_text(folder, capsys):
    config = folder([{"id": "[/b]\x1b[31m", "prompt": "x", "max_tokens": 1}])
    assert main(["run", str(config), "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["requests"][0]["id"] == "[/b]\x1b[31m"
    assert "[/b]" in printed.err
    assert "hit rate" in printed.err
    assert "\x1b" not in printed.err


def test_a_full_disk_is_an_error_and_no_traceback(folder, capsys):
    config = folder([{"id": "a", "prompt": "x", "max_tokens": 1}])
    assert main(["run", str(config), "--json", "/dev/full"]) == 2
    assert "cannot write --json /dev/full: No space left" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_found_before_the_work(folder, capsys, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["run", str(folder()), "--json", str(tmp_path / "file" / "out.json")]) == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_print_what_was_done(folder, number, status):
    prompts = [{"id": "quick", "prompt": "x", "max_tokens": 1}] + [
        {"id": f"slow{i}", "prompt": "y" * 30, "max_tokens": 400, "stop": "never in any answer"} for i in range(40)
    ]
    config = folder(prompts)
    out = config.parent / "result.json"
    code = "import sys; from kvcache_core.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", str(config), "--json", str(out), "--set", "engine.max_running=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("quick:"):
                process.send_signal(number)
                break
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == status, stderr
    assert "Traceback" not in stderr
    data = json.loads(out.read_text(encoding="utf-8"))
    by_id = {r["id"]: r for r in data["requests"]}
    assert by_id["quick"]["finish_reason"] == "length"
    summary = data["summary"]
    begun = [r for r in data["requests"] if r["computed_tokens"] or any(r["cached_tokens"].values())]
    assert 0 < summary["not_begun"] == 41 - len(begun) <= summary["aborted"]
    assert summary["prompt_tokens"] == sum(r["prompt_tokens"] for r in begun)
    assert summary["hit_rate"] == pytest.approx(sum(summary["cached_tokens"].values()) / summary["prompt_tokens"])
    assert "quick" in stdout
    assert f"{summary['aborted']} aborted, {summary['not_begun']} of them not begun" in stdout
