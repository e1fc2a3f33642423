"""Two engine processes over one store, one after the other, as a user starts them: what the first computed, the second reuses.

The model is random and tiny, prompts are token ids; what has to be computed is what a plain trie of whole pages says. It knows
the command line and its JSON output, no engine and no backend: each backend's tests bring a storage section.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

PAGE: Final = 16
VOCAB: Final = 256
LIMIT_SECONDS: Final = 300.0
COMMAND: Final = (sys.executable, "-m", "kvcache_core", "run")


@final
class PageTrie:
    """The whole pages that were given so far, each with all that is before it."""

    def __init__(self) -> None:
        self._known: set[tuple[str, tuple[int, ...]]] = set()

    def add(self, ids: Sequence[int], extra_key: str) -> None:
        self._known |= {(extra_key, tuple(ids[:end])) for end in range(PAGE, len(ids) + 1, PAGE)}

    def match(self, ids: Sequence[int], extra_key: str) -> int:
        """Tokens of `ids` that need not be computed."""
        length = 0
        while length + PAGE <= len(ids) and (extra_key, tuple(ids[: length + PAGE])) in self._known:
            length += PAGE
        return length


def check_two_processes(storage: Mapping[str, Any], folder: Path, persist_on: str = "evict") -> None:
    """Run an engine twice over `storage`, the section of a configuration. `folder`: an empty one, for all that is written.

    Raises AssertionError: a process failed, the second one's tokens are not those of the first, it computed more or less than a
    trie fed with what was computed before, or the storage was not well.
    """
    prompts = _prompts()
    first = run_engine(storage, folder / "first", prompts, persist_on)
    trie = PageTrie()
    for request in first["requests"]:
        _give(trie, prompts[request["id"]], request)
    assert first["summary"]["cached_tokens"]["storage"] == 0, "the store was not empty at first"

    later = {**prompts, **_continued(prompts)}
    second = run_engine(storage, folder / "second", later, persist_on)
    outputs = {request["id"]: request["output_tokens"] for request in first["requests"]}
    reused = 0
    for request in second["requests"]:
        name = request["id"]
        prompt = later[name]
        known = trie.match(prompt["prompt"][:-1], prompt["extra_key"])
        computed = len(prompt["prompt"]) - known
        found = request["computed_tokens"]
        assert found == computed, f"{name}: {found} tokens were computed, not {computed}"
        assert request["output_tokens"] == outputs.get(name, request["output_tokens"]), f"{name}: another answer than at first"
        _give(trie, prompt, request)
        reused += request["cached_tokens"]["storage"]
    assert reused > 20 * PAGE, f"only {reused} tokens came from storage"
    assert second["summary"]["cache"]["storage_state"] == "ok", second["summary"]["cache"]["storage_state"]


def run_engine(
    storage: Mapping[str, Any], folder: Path, prompts: Mapping[str, Mapping[str, Any]], persist_on: str = "evict"
) -> dict[str, Any]:
    """`kvcache run` in a process of its own, one request at a time; gives its JSON output. Makes `folder`.

    Raises AssertionError: it failed, or a request did.
    """
    folder.mkdir(parents=True)
    lines = [json.dumps({"id": name, **prompt}) for name, prompt in prompts.items()]
    (folder / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    config = {
        "cache_type": "unified_radix_cache",
        "page_size": PAGE,
        "hicache": {
            "storage": dict(storage),
            "ratio": 4.0,
            "backup_on": "insert",
            "persist_on": persist_on,
            "prefetch_threshold": PAGE,
            "prefetch_timeout": None,
        },
        "engine": {
            "model": "tiny-qwen3",
            "prompts": "prompts.jsonl",
            "device_tokens": 2048,
            "chunk_tokens": 64,
            "max_running": 1,
            "compilation_cache": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(folder.parent / "jax")),
        },
    }
    # JSON is YAML, too.
    (folder / "cache.yaml").write_text(json.dumps(config), encoding="utf-8")
    output = folder / "result.json"
    done = subprocess.run(
        [*COMMAND, str(folder / "cache.yaml"), "--json", str(output)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"kvcache run ended with status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    failed = [request["id"] for request in result["requests"] if request["error"] is not None]
    assert not failed, f"requests failed: {', '.join(failed)}"
    return result


def _prompts() -> dict[str, dict[str, Any]]:
    """Some share a beginning that ends inside a page, and two differ in the extra key alone."""
    rng = random.Random(7)
    shared = [rng.randrange(VOCAB) for _ in range(59)]
    made: dict[str, dict[str, Any]] = {}
    for number in range(6):
        own = [rng.randrange(VOCAB) for _ in range(50 + 3 * number)]
        prompt = shared[: 59 - number] + own if number % 2 else own
        made[f"text {number}"] = {"prompt": prompt, "max_tokens": 4 + number, "extra_key": ""}
    made["tenant"] = {**made["text 1"], "extra_key": "lora"}
    return made


def _continued(prompts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Prompts that leave an earlier one in its middle, and go on."""
    rng = random.Random(8)
    return {
        f"{name}, later": {**prompt, "prompt": [*prompt["prompt"][: 40 + number], *(rng.randrange(VOCAB) for _ in range(23))]}
        for number, (name, prompt) in enumerate(prompts.items())
    }


def _give(trie: PageTrie, prompt: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    ids = [*prompt["prompt"], *request["output_tokens"]][:-1]  # the last token is drawn and never computed
    trie.add(ids, prompt["extra_key"])
