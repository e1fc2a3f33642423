"""What our caches cost sgl-jax's scheduler for each step, against its own RadixCache: its engine, its pools, in turn.

One engine serves the same prompts with both caches, one after the other in random order, pair by pair; the cache is exchanged
while the engine is idle and flushed. Timed is what the scheduler's thread spends inside the cache's methods, in its own CPU time
and by the clock (which includes waiting, for loads and for the forward before); a step is one forward pass. In neither: what the
device and the runtime's threads do for copies, and what the cache does in turns of the scheduler without a request. The ratio is
taken pair by pair, so both sides saw the same machine.

    python benchmarks/bench_sgl_jax.py [--pairs 30] [--requests 16] [--prompt 384] [--overlap] [--hicache-ratio 4]
        [--out out/sgl_jax.json]

It runs in an environment with sgl-jax (docs/sgl-jax.md) and says so elsewhere.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvcache_conformance.sgl_jax_session import start_engine, wait_until_idle

WARM_UP = 3
TOKENS = 4096
METHODS = (
    *("match_prefix", "cache_finished_req", "cache_unfinished_req", "evict", "inc_lock_ref", "dec_lock_ref"),
    *("evictable_size", "protected_size", "check_hicache_events", "flush_write_through_acks", "init_load_back"),
)


EVERY_TURN = ("evictable_size", "protected_size", "check_hicache_events", "flush_write_through_acks")
"""Called in turns without a request too, which come as often as the machine lets them and belong to no step."""


class Timed:
    """Stands where the scheduler expects a cache and counts the seconds spent in it. `cache`: sgl-jax's or our adapter."""

    def __init__(self, cache: Any, scheduler: Any) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self.seconds = 0.0
        """CPU time of the scheduler's thread."""
        self.wall = 0.0
        self.calls = 0
        self.idle = True
        """Between the rounds: the scheduler goes on turning, as often as the machine lets it."""
        for name in METHODS:
            if name in dir(cache):
                setattr(self, name, self._timed(getattr(cache, name), name in EVERY_TURN))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def _nothing_to_do(self) -> bool:
        return not self._scheduler.waiting_queue and self._scheduler.running_batch.is_empty()

    def _timed(self, method: Any, every_turn: bool) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.idle or (every_turn and self._nothing_to_do()):
                return method(*args, **kwargs)
            start, clock = time.thread_time(), time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start
                self.wall += time.perf_counter() - clock
                self.calls += 1

        return call


def prompts_of(rng: random.Random, requests: int, length: int) -> list[list[list[int]]]:
    """Two rounds of a few conversations: the second goes on from the first, as a chat does."""
    stems = [[rng.randrange(1, 250) for _ in range(length // 2)] for _ in range(4)]
    first = [rng.choice(stems) + [rng.randrange(1, 250) for _ in range(length // 4)] for _ in range(requests)]
    return [first, [prompt + [rng.randrange(1, 250) for _ in range(length // 4)] for prompt in first]]


def build_ours(scheduler: Any, ratio: float | None) -> Any:
    """Our adapter over the pools of a running scheduler."""
    from kvcache_core.config.load import load_config
    from kvcache_core.config.sources import Override
    from kvcache_sgl_jax.build import CacheBuilder

    overrides = [] if ratio is None else [Override(("hicache", "ratio"), str(ratio), "--hicache-ratio")]
    kind = "radix_cache" if ratio is None else "unified_radix_cache"
    overrides.append(Override(("cache_type",), kind, "--cache-type", is_yaml=False))
    return CacheBuilder(load_config(None, overrides))(
        server_args=scheduler.server_args,
        req_to_token_pool=scheduler.req_to_token_pool,
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
        page_size=scheduler.page_size,
        is_hybrid=False,
        spec_algorithm=None,
        mesh=scheduler.mesh,
    )


def serve(engine: Any, scheduler: Any, cache: Any, rounds: list[list[list[int]]]) -> dict[str, float]:
    """One side of a pair: microseconds a step in the cache (CPU time, and by the clock), calls a step, tokens hit."""
    wait_until_idle(scheduler)
    timed = Timed(cache, scheduler)
    engine.flush_cache()
    scheduler.tree_cache = scheduler.policy.tree_cache = timed
    # Again, because a flush also makes the empty running batch, which holds the cache.
    engine.flush_cache()
    steps, hit = scheduler.forward_ct, 0
    for prompts in rounds:
        timed.idle = False
        results = engine.generate(input_ids=prompts, sampling_params={"temperature": 0, "max_new_tokens": 16, "ignore_eos": True})
        timed.idle = True
        hit += sum(result["meta_info"]["cached_tokens"] for result in results)
    wait_until_idle(scheduler)
    steps = scheduler.forward_ct - steps
    return {
        "us_per_step": 1e6 * timed.seconds / steps,
        "wall_us_per_step": 1e6 * timed.wall / steps,
        "calls_per_step": timed.calls / steps,
        "steps": steps,
        "hit": hit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=384, help="tokens of a prompt in its second round")
    parser.add_argument("--overlap", action="store_true", help="sgl-jax's overlapping scheduling")
    parser.add_argument("--hicache-ratio", type=float, default=None, help="with L2 of so many times the pool")
    parser.add_argument("--out", type=Path, default=Path("out/sgl_jax.json"))
    arguments = parser.parse_args()
    if find_spec("sgl_jax") is None:
        print("sgl-jax is not installed here: see docs/sgl-jax.md for an environment that has it")
        return
    os.environ |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        limits = {"max_total_tokens": TOKENS, "disable_overlap_schedule": not arguments.overlap}
        engine = start_engine(Path(folder), limits)
        scheduler = engine.scheduler_info["scheduler"]
        theirs, ours = scheduler.tree_cache, build_ours(scheduler, arguments.hicache_ratio)
        if arguments.overlap:
            ours._donation_barrier = scheduler._wait_donation_safe  # noqa: SLF001  as the scheduler does with a cache it made
        rng = random.Random(0)
        pairs: list[dict[str, dict[str, float]]] = []
        for number in range(WARM_UP + arguments.pairs):
            rounds = prompts_of(rng, arguments.requests, arguments.prompt)
            order = [("theirs", theirs), ("ours", ours)]
            rng.shuffle(order)
            pair = {name: serve(engine, scheduler, cache, rounds) for name, cache in order}
            if number >= WARM_UP:
                pairs.append(pair)
    report(arguments, pairs)


def report(arguments: argparse.Namespace, pairs: list[dict[str, dict[str, float]]]) -> None:
    ratios = sorted(pair["ours"]["us_per_step"] / pair["theirs"]["us_per_step"] for pair in pairs)
    quarter = len(ratios) // 4
    summary = {"ratio": statistics.median(ratios), "ratio_quartiles": [ratios[quarter], ratios[-1 - quarter]]}
    print("| cache | us a step (median) | by the clock | calls a step | tokens hit |\n| --- | ---: | ---: | ---: | ---: |")
    for name in ("theirs", "ours"):
        side = [pair[name] for pair in pairs]
        keys = ("us_per_step", "wall_us_per_step", "calls_per_step")
        us, wall, calls = (statistics.median(each[key] for each in side) for key in keys)
        summary[name] = {
            "us_per_step": us,
            "wall_us_per_step": wall,
            "calls_per_step": calls,
            "hit": sum(each["hit"] for each in side),
        }
        print(f"| {name} | {us:.0f} | {wall:.0f} | {calls:.1f} | {summary[name]['hit']:.0f} |")
    walls = [pair["ours"]["wall_us_per_step"] / pair["theirs"]["wall_us_per_step"] for pair in pairs]
    summary["wall_ratio"] = statistics.median(walls)
    low, high = summary["ratio_quartiles"]
    print(f"\nours / theirs, pair by pair: {summary['ratio']:.2f} (half of the pairs: {low:.2f} to {high:.2f})")
    print(f"by the clock: {summary['wall_ratio']:.2f}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({"arguments": vars(arguments), "summary": summary, "pairs": pairs}, default=str, indent=1)
    )
    sys.stdout.flush()
    # sgl-jax's threads do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
