"""One run of sgl-jax's engine on the CPU in a process of its own: prompts in, tokens and the state of its cache out, as JSON.

Its engine lives in a thread and installs signal handlers, so every run is a process:

    python -c "from kvcache_conformance.sgl_jax_session import main; main()" < spec.json

with whatever installs another cache in front. The spec: `model` (a folder for the tiny model, made when missing), `rounds` (lists
of prompts as token ids; those of a round are given at once), `max_new_tokens` (of the i-th prompt: entry i modulo the list's
length), `args` (more of sgl-jax's arguments). The answer: `outputs` and `cached` by round, `peak` (the most requests that decoded
together), `counters` of the caches of ours.
It knows no cache and imports sgl-jax only when it runs.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
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


def when_idle(scheduler: Any, work: Callable[[], bool]) -> None:
    """Call `work` in the scheduler's thread, between its turns, whenever it is idle, until it returns True or raises.

    The scheduler goes on turning while it has nothing to do, and its cache with it: from another thread nothing can be looked at
    that it may be changing. Raises what `work` raises, and TimeoutError when it is never done.
    """
    done: Future[None] = Future()
    on_idle: Any = scheduler.on_idle

    def turn() -> None:
        on_idle()
        if done.done() or not scheduler.is_fully_idle():
            return
        try:
            if work():
                done.set_result(None)
        except BaseException as error:  # it belongs to the caller; in this thread sgl-jax would end the process
            done.set_exception(error)

    scheduler.on_idle = turn
    try:
        done.result(IDLE_SECONDS)
    finally:
        scheduler.on_idle = on_idle


def wait_until_idle(scheduler: Any) -> None:
    """Then sgl-jax's own check of its memory, which raises ValueError when a slot is missing."""

    def check() -> bool:
        scheduler.check_memory()
        return True

    when_idle(scheduler, check)


def check_and_flush(scheduler: Any) -> None:
    """What must be true of our caches when no request is left: no lock lives, every page has one owner, and a flush frees all.

    sgl-jax's check cannot see a lock that was never released: what is locked counts as there.
    """

    def check() -> bool:
        cache: Any = scheduler.tree_cache
        ranks: tuple[Any, ...] = getattr(cache, "ranks", ())
        if ranks and cache.hicache_enabled and any(rank.cache.size("full", "host").in_flight for rank in ranks):
            return False
        scheduler.check_memory()
        for number, rank in enumerate(ranks):
            rank.cache.check_integrity({})
            if rank.protected:
                raise RuntimeError(f"no request is left, and {rank.protected} tokens of rank {number} are locked")
        flushed, why, _ = scheduler.flush_cache()
        if not flushed:
            raise RuntimeError(why)
        scheduler.check_memory()
        for number in range(len(ranks)):
            if cache.evictable_size(number) + cache.protected_size(number):
                raise RuntimeError(f"a flush left tokens in the cache of rank {number}")
        return True

    when_idle(scheduler, check)


def watch_running(scheduler: Any) -> Callable[[], int]:
    """The returned function says how many requests were decoding together, at most, in the steps from now on."""
    run_batch: Any = scheduler.run_batch
    peak = 0

    def watched(batch: Any) -> Any:
        nonlocal peak
        peak = max(peak, scheduler.running_batch.batch_size())
        return run_batch(batch)

    scheduler.run_batch = watched
    return lambda: peak


def main() -> None:
    """Reads the spec from standard input, writes the answer to standard output and ends the process."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    spec = json.load(sys.stdin)
    engine = start_engine(Path(spec["model"]), spec.get("args", {}))
    scheduler = engine.scheduler_info["scheduler"]
    peak = watch_running(scheduler)
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
    check_and_flush(scheduler)
    cache = scheduler.tree_cache
    answer = {
        "cache": type(cache).__name__,
        "outputs": outputs,
        "cached": cached,
        "peak": peak(),
        "counters": [rank.cache.counters.as_dict() for rank in getattr(cache, "ranks", ())],
    }
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    # Its threads do not end by themselves, and its own way out kills whatever it finds among its children.
    os._exit(0)
