"""RFC H2, as its user meets it: `kvcache run`, exit, and a new process that computes exactly what a plain page trie says."""

import json
import subprocess
import sys
from collections import Counter
from urllib.parse import unquote

import numpy as np
import pytest

from kvcache_conformance.page_trie import PageTrie
from kvcache_conformance.storage_texts import Text, later_texts, texts
from kvcache_core.cli import main

ENGINE = """\
page_size: {page}
engine:
  model: {model}
  device_tokens: {tokens}
  chunk_tokens: 64
  max_running: 1
  compilation_cache: null
"""
CONFIG = """\
cache_type: unified_radix_cache
hicache:
  storage: {{kind: file, path: store, min_free_bytes: 0}}
  backup_on: insert
  persist_on: {on}
  prefetch_threshold: {page}
  prefetch_timeout: null
  persist_timeout: 60
"""
DEVICE_TOKENS = {1: 160, 16: 256, 64: 768}
"""By page size: L1 holds one or two of the texts, and L2, twice as large, not all of them."""
COMMAND = [sys.executable, "-c", "import sys; from kvcache_core.cli import main; sys.exit(main())", "run"]
COMBINATIONS = [
    pytest.param(page, on, marks=() if (page, on) in ((16, "evict"), (1, "insert")) else pytest.mark.slow, id=f"{page}-{on}")
    for page in (1, 16, 64)
    for on in ("evict", "insert")
]


def write_prompts(path, prompts: list[Text]):
    lines = [
        {
            "id": text.id,
            "prompt": text.ids.tolist(),
            "max_tokens": text.max_tokens,
            "seed": text.seed,
            "extra_key": [part.decode() for part in text.extra_key],
        }
        for text in prompts
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def results_of(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    return {request["id"]: request for request in result["requests"]}, result["summary"]


def in_a_new_process(config, prompts, *flags):
    """What `kvcache run --json` writes: requests by id, and the summary."""
    out = config.with_suffix(".json")
    command = [*COMMAND, str(config), "--prompts", str(prompts), "--json", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return results_of(out)


def without_reuse(folder, engine, prompts):
    """The answers of an engine that keeps nothing."""
    config, out = folder / "plain.yaml", folder / "plain.json"
    config.write_text(f"cache_type: chunk_cache\n{engine}", encoding="utf-8")
    assert main(["run", str(config), "--prompts", str(prompts), "--json", str(out)]) == 0
    requests, _ = results_of(out)
    return {name: request["output_tokens"] for name, request in requests.items()}


@pytest.mark.parametrize(("page", "on"), COMBINATIONS)
def test_a_new_process_computes_what_a_page_trie_says(tmp_path, qwen3_folder, page, on):
    """Whatever order its requests are served in: what they have in common beyond the first run's pages is nothing."""
    engine = ENGINE.format(page=page, model=qwen3_folder, tokens=DEVICE_TOKENS[page])
    config = tmp_path / "cache.yaml"
    config.write_text(engine + CONFIG.format(page=page, on=on), encoding="utf-8")
    given = texts(page)

    first, summary = in_a_new_process(config, write_prompts(tmp_path / "first.jsonl", given))
    assert summary["cache"]["host_evicted_tokens"] > 0  # L2 was too small, so storage holds what nothing else did
    assert (summary["persisted"]["remaining"], summary["persisted"]["dropped"]) == (0, {})
    assert not summary["cache"]["dropped"]
    trie = PageTrie(page)
    for text in given:
        # The last token is drawn and never computed.
        known = [*text.ids, *first[text.id]["output_tokens"]][:-1]
        trie.add(np.array(known, np.int32), text.extra_key)

    prompts = later_texts(given, page)
    path = write_prompts(tmp_path / "second.jsonl", prompts)
    # With room for all in L2: a limit there is not what a trie without one knows.
    second, summary = in_a_new_process(config, path, "--hicache-ratio", "12")
    answers = without_reuse(tmp_path, engine, path)
    for text in prompts:
        request = second[text.id]
        assert request["computed_tokens"] == len(text.ids) - trie.match(text.ids[:-1], text.extra_key), text.id
        assert request["computed_tokens"] + sum(request["cached_tokens"].values()) == len(text.ids)
        assert request["output_tokens"] == answers[text.id], text.id
    assert all(second[text.id]["output_tokens"] == first[text.id]["output_tokens"] for text in given)
    assert summary["cached_tokens"]["storage"] > 10 * page
    assert (summary["cache"]["storage_state"], summary["cache"]["misses"]) == ("ok", {})

    files = list(tmp_path.glob(f"store/[!.]*/{page}/??/*.npy"))
    assert {unquote(file.parents[2].name) for file in files} == {summary["model"]["id"]}
    assert all(file.name.startswith(file.parent.name) and len(file.stem) == 64 for file in files)
    shapes = Counter((str(payload.dtype), payload.shape) for payload in map(np.load, files))
    assert len(shapes) == 1 and next(iter(shapes))[0] == "uint8"
    assert main(["storage", "verify", str(config), "--quiet"]) == 0
