"""One run of sgl-jax's engine on the CPU in a process of its own: prompts in, tokens and the state of its cache out, as JSON.

Its engine lives in a thread and installs signal handlers, so every run is a process:

    python -c "from kvcache_conformance.sgl_jax_session import main; main()" < spec.json

with whatever installs another cache in front. The spec: `model` (a folder for the tiny model, made when missing), `rounds` (lists
of prompts as token ids; those of a round are given at once), `max_new_tokens` (of the i-th prompt: entry i modulo the list's
length), `args` (more of sgl-jax's arguments). The answer: `outputs` and `cached` by round, `counters` of the caches of ours.
It knows no cache and imports sgl-jax only when it runs.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kvcache_conformance.tiny_models import tiny_qwen3, write_model_folder

ARGUMENTS = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "native",
    "grammar_backend": "none",
    "disable_precompile": True,
    "skip_server_warmup": True,
    "enable_single_process": True,
    "max_running_requests": 32,
    "chunked_prefill_size": 64,
    "log_level": "error",
    "random_seed": 1,
}
IDLE_SECONDS = 60


def start_engine(model: Path, arguments: dict[str, Any]) -> Any:
    """An engine for the tiny model; heads of 128, which sgl-jax's pools want."""
    if not (model / "config.json").exists():
        write_model_folder(tiny_qwen3(head_dim=128), model)
    batches: Any = importlib.import_module("sgl_jax.srt.managers.schedule_batch").ScheduleBatch
    # sgl-jax reuses one host buffer for the slots of every step. On the CPU the device reads that memory itself, with overlapping
    # scheduling while the next step is written there: outputs are wrong then, with its own caches too. So each step gets a copy.
    merge: Any = batches._merge_cache_loc  # noqa: SLF001

    def merge_and_copy(*args: Any) -> Any:
        return merge(*args).copy()

    batches._merge_cache_loc = merge_and_copy  # noqa: SLF001
    engine: Any = importlib.import_module("sgl_jax.srt.entrypoints.engine").Engine
    return engine(model_path=str(model), **(ARGUMENTS | arguments))


def wait_until_idle(scheduler: Any) -> None:
    """Then sgl-jax's own check of its memory, which raises ValueError when a slot is missing."""
    end = time.monotonic() + IDLE_SECONDS
    while not scheduler.is_fully_idle():
        if time.monotonic() > end:
            raise TimeoutError("sgl-jax did not become idle")
        time.sleep(0.02)
    scheduler.check_memory()


def main() -> None:
    """Reads the spec from standard input, writes the answer to standard output and ends the process."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    spec = json.load(sys.stdin)
    engine = start_engine(Path(spec["model"]), spec.get("args", {}))
    outputs: list[list[list[int]]] = []
    cached: list[list[int]] = []
    lengths: list[int] = spec["max_new_tokens"]
    for prompts in spec["rounds"]:
        sampling = [
            {"temperature": 0, "max_new_tokens": lengths[i % len(lengths)], "ignore_eos": True} for i in range(len(prompts))
        ]
        results = engine.generate(input_ids=prompts, sampling_params=sampling)
        outputs.append([result["output_ids"] for result in results])
        cached.append([result["meta_info"]["cached_tokens"] for result in results])
    scheduler = engine.scheduler_info["scheduler"]
    wait_until_idle(scheduler)
    ranks: tuple[Any, ...] = getattr(scheduler.tree_cache, "ranks", ())
    for rank in ranks:
        rank.cache.check_integrity({})
    counters = [rank.cache.counters.as_dict() for rank in ranks]
    name = type(scheduler.tree_cache).__name__
    sys.stdout.write(json.dumps({"cache": name, "outputs": outputs, "cached": cached, "counters": counters}))
    sys.stdout.flush()
    # Its threads do not end by themselves, and its own way out kills whatever it finds among its children.
    os._exit(0)
