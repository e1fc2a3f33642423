"""Time to the first token of a long prompt: computed, found in L1, and brought back from L2.

Everything is compiled, the queue is empty. `cold`: a new prompt. `L1`: the same one again. `L2`: again after it has left L1. In
the same run, memcpy: numpy copies as many bytes as the hit brings, to a warm destination. Wanted: L1 at most 0.06 of cold, and
L2 - L1 at most twice the memcpy.

    python benchmarks/bench_ttft.py [--rounds 7] [--tokens 1500] [--model smollm2-135m] [--out out/ttft.json]

Figures of a CPU say nothing about HBM and PCIe.
"""

import argparse
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from hicache.common import PAGE, build, hicache, load, write

from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine
from kvcache_engine.request import Request, RequestSpec

L1_LIMIT, LOAD_LIMIT = 0.06, 2.0


def ask(engine: Engine, ids: np.ndarray) -> tuple[float, Request]:
    """Seconds from queueing to the first token."""
    request = engine.scheduler.submit(RequestSpec("one", ids, 1))
    while engine.scheduler.busy:
        engine.scheduler.step()
    assert request.first_token_at is not None
    return request.first_token_at - request.submitted_at, request


def settle(engine: Engine) -> None:
    """Until every copy to L2 is committed; then the engine is quiet."""
    while engine.cache.size("full", "host").in_flight:
        engine.scheduler.step()
        time.sleep(0.001)


class Memcpy:
    """numpy's copy of `nbytes`, source and destination touched before."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._source, self._warm = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def seconds(self) -> float:
        start = time.perf_counter()
        np.copyto(self._warm, self._source)
        return time.perf_counter() - start


def measure(engine: Engine, tokens: int, rounds: int, rng: np.random.Generator) -> dict[str, Any]:
    pages = (tokens - 1) // PAGE
    memcpy = Memcpy(pages * engine.page_bytes["full"])
    times: dict[str, list[float]] = {"cold": [], "L1": [], "L2": [], "memcpy": []}
    for number in range(2 + rounds):
        ids = rng.integers(0, engine.model.config.vocab_size, tokens).astype(np.int32)
        cold, request = ask(engine, ids)
        assert not request.counts.cached
        settle(engine)
        l1, request = ask(engine, ids)
        assert request.counts.device == pages * PAGE
        settle(engine)
        engine.cache.evict("full", engine.cache.size("full").total)
        settle(engine)
        copy = memcpy.seconds()
        l2, request = ask(engine, ids)
        assert request.counts.host == pages * PAGE
        if number >= 2:
            for name, seconds in (("cold", cold), ("L1", l1), ("L2", l2), ("memcpy", copy)):
                times[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "ms": {name: 1e3 * value for name, value in medians.items()},
        "ms_best": {name: 1e3 * min(values) for name, values in times.items()},
        "bytes": memcpy.nbytes,
        "l1_of_cold": medians["L1"] / medians["cold"],
        "load_of_memcpy": statistics.median(l2 - l1 for l1, l2 in zip(times["L1"], times["L2"], strict=True)) / medians["memcpy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path, default=Path("out/ttft.json"))
    arguments = parser.parse_args()
    tokens = arguments.tokens
    config = EngineConfig(
        model=arguments.model, device_tokens=2 * tokens, chunk_tokens=arguments.chunk, max_running=1, context=tokens + PAGE
    )
    model = load(config)
    rng, rows, like = np.random.default_rng(0), [], None
    print(
        f"{tokens} tokens; median ms\n{'host pool':13} {'waits':11} {'cold':>9} {'L1':>8} {'L2':>8} {'memcpy':>8}"
        f" {'L1/cold':>8} {'(L2-L1)/memcpy':>15}"
    )
    for host_pool, async_impl in product(("per_page", "preallocated"), ("future", "threadpool")):
        engine = build(model, config, hicache(2.0, async_impl, host_pool), like)
        like = engine
        row = measure(engine, tokens, arguments.rounds, rng)
        engine.cache.close()
        rows.append({"host_pool": host_pool, "async_impl": async_impl, **row})
        ms = row["ms"]
        print(
            f"{host_pool:13} {async_impl:11} {ms['cold']:9.1f} {ms['L1']:8.1f} {ms['L2']:8.1f} {ms['memcpy']:8.2f}"
            f" {row['l1_of_cold']:8.3f} {row['load_of_memcpy']:15.2f}",
            flush=True,
        )
    print(f"limits: L1/cold {L1_LIMIT}, (L2-L1)/memcpy {LOAD_LIMIT}")
    write(arguments.out, {"model": model.model_id, "tokens": tokens, "rounds": arguments.rounds, "rows": rows})


if __name__ == "__main__":
    main()
