"""`kvcache run` with storage behind L1 and L2, as its user meets it: the second process reuses what the first one computed."""

import json
import re
import subprocess
import sys

import pytest

from kvcache_core.cli import main

CONFIG = """\
cache_type: unified_radix_cache
page_size: 16
hicache:
  storage:
    kind: file
    path: store
  prefetch_threshold: 16
  prefetch_timeout: null
engine:
  model: {model}
  prompts: prompts.jsonl
  device_tokens: 640
  chunk_tokens: 32
  max_running: 2
  max_tokens: 8
  compilation_cache: null
"""
COMMAND = [sys.executable, "-c", "import sys; from kvcache_core.cli import main; sys.exit(main())", "run"]


@pytest.fixture
def config(tmp_path, qwen3_folder):
    said = ("which tides are the highest?", "and which the lowest?")
    talks = [
        {"id": name, "messages": [{"role": "user", "content": f"{name} {text} {name * 4}"} for text in said]}
        for name in ("ada", "bruno", "chiara")
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, talks)), encoding="utf-8")
    path = tmp_path / "cache.yaml"
    path.write_text(CONFIG.format(model=qwen3_folder), encoding="utf-8")
    return path


def run(config, *more):
    out = config.parent / "result.json"
    status = main(["run", str(config), "--json", str(out), *more])
    return status, json.loads(out.read_text(encoding="utf-8"))


def test_a_second_process_reuses_what_the_first_one_computed(config, tmp_path):
    results, printed = [], []
    for number in range(2):
        out = config.parent / f"{number}.json"
        # Elsewhere: a relative path means a place beside the configuration file.
        done = subprocess.run([*COMMAND, str(config), "--json", str(out)], capture_output=True, text=True, cwd="/", check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
        results.append(json.loads(out.read_text(encoding="utf-8")))
    first, second = results
    assert [r["output_tokens"] for r in second["requests"]] == [r["output_tokens"] for r in first["requests"]]
    assert first["summary"]["cached_tokens"]["storage"] == 0
    for request in second["requests"]:
        cached = sum(request["cached_tokens"].values())
        # All that was computed in the first run, so that nothing of it is computed again.
        assert cached == (request["prompt_tokens"] - 1) // 16 * 16
        assert request["computed_tokens"] == request["prompt_tokens"] - cached
    stored, prompt = (second["summary"][name] for name in ("cached_tokens", "prompt_tokens"))
    assert stored["storage"] > 0.3 * prompt
    for result, direction, counter in ((first, "store", "storage_written_tokens"), (second, "fetch", "storage_loaded_tokens")):
        moved = result["summary"]["movements"][direction]
        assert moved["bytes"] > 0
        assert moved["bytes_per_s"] == pytest.approx(moved["bytes"] / moved["seconds"])
        assert result["summary"]["cache"][counter] > 0
    # The answers' pages were computed again, and the storage had them.
    assert second["summary"]["movements"]["store"]["bytes"] == 0 < second["summary"]["cache"]["storage_written_tokens"]
    files = list(tmp_path.glob("store/*/16/*/*.npy"))
    assert len(files) * 16 >= first["summary"]["cache"]["storage_written_tokens"] > 0
    assert second["summary"]["storage"] == "file"
    assert second["summary"]["cache"]["storage_state"] == "ok"
    assert re.search(r"reused +nothing from storage; this run handed it \d+ tokens", printed[0])
    assert re.search(rf"reused +{stored['storage']} of {prompt} prompt tokens came from storage, where earlier runs", printed[1])
    for line in (r"storage +file: ok", r"L3 to L2 +\d+ tokens, .*/s", r"L2 to L3 +\d+ tokens", r"stored at the end +\d+ pages"):
        assert re.search(line, printed[1])


def test_what_is_never_written_is_said_at_the_start_and_at_the_end(config, capsys):
    flags = ["--hicache-write-policy", "write_through"]
    assert main(["run", str(config), *flags]) == 2
    assert "cannot be opened only to be read (persist_on: never)" in capsys.readouterr().err, (
        "it would make a folder, or miss for ever"
    )
    store = config.parent / "store"
    store.mkdir()
    status, data = run(config, *flags)
    assert status == 0
    printed = capsys.readouterr()
    assert "L2 to L3 never" in printed.err
    assert "storage file, which is read and never written" in printed.err
    persisted = data["summary"]["persisted"]
    assert persisted["stored"] == data["summary"]["cache"]["storage_written_tokens"] == 0
    assert persisted["message"]
    assert re.search(r"stored at the end +0 pages", printed.out)
    assert list(store.iterdir()) == []
    # But what is there is read.
    run(config)
    capsys.readouterr()
    _, data = run(config, *flags)
    assert data["summary"]["cached_tokens"]["storage"] > 0


def test_a_storage_that_cannot_work_ends_the_run_before_it_begins(config, capsys):
    (config.parent / "store").write_text("no folder", encoding="utf-8")
    assert main(["run", str(config)]) == 2
    printed = capsys.readouterr()
    assert "cache.yaml:" in printed.err
    assert "hicache.storage" in printed.err
    assert "Traceback" not in printed.err


def test_no_time_to_store_leaves_pages_behind_and_says_so(config, capsys):
    status, data = run(config, "--set", "hicache.persist_timeout=0")
    assert status == 0
    assert data["summary"]["persisted"]["remaining"] > 0
    assert re.search(r"stored at the end +\d+ pages in .*; \d+ pages left behind", capsys.readouterr().out)


def test_without_storage_nothing_is_said_of_it(config, capsys):
    status, data = run(config, "--hicache-storage", "none")
    assert status == 0
    assert data["summary"]["storage"] is None
    assert data["summary"]["persisted"] is None
    assert "reused" not in capsys.readouterr().out
