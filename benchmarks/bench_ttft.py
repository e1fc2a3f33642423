"""Time to the first token of a long prompt: computed, found in L1, and brought back from L2 or from files (L3).

Everything is compiled, the queue is empty, and freed memory is kept as `kvcache run` keeps it. `cold`: a new prompt. `L1`: the
same one again. `L2`: again after it has left L1. `L3`: again after memory has forgotten it. In the same run, memcpy: numpy copies
as many bytes as the hit brings, to a warm destination; and read: plain reads of as many files of a page each on the same disk,
just written like the store's own, so both come from the system's page cache. Wanted: L1 at most 0.06 of cold, L2 - L1 at most
twice the memcpy, L3 - L1 at most twice the read.

Beside them the passes that an L3 hit cannot leave out, each by one thread: place reads the files to where the arrays belong,
verify takes the checksums there, and the memcpy stands for the copy to L1; fresh is what reading costs into memory that the
process has never touched.

    python benchmarks/bench_ttft.py [--rounds 7] [--tokens 1500] [--model smollm2-135m] [--store FOLDER] [--out out/ttft.json]

Figures of a CPU say nothing about HBM and PCIe.
"""

import argparse
import statistics
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hicache.common import PAGE, build, hicache, load, write
from hicache.reads import Reads

from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine
from kvcache_engine.freed_memory import keep_freed_memory
from kvcache_engine.request import Request, RequestSpec

COLUMNS = ("cold", "L1", "L2", "L3", "memcpy", "read", "place", "verify", "fresh")
L1_LIMIT, LOAD_LIMIT, FETCH_LIMIT = 0.06, 2.0, 2.0


def ask(engine: Engine, ids: np.ndarray) -> tuple[float, Request]:
    """Seconds from queueing to the first token."""
    request = engine.scheduler.submit(RequestSpec("one", ids, 1))
    while engine.scheduler.busy:
        engine.scheduler.step()
    assert request.first_token_at is not None
    return request.first_token_at - request.submitted_at, request


def settle(engine: Engine) -> None:
    """Until every copy to L2 is committed, and a little longer: other threads let go of what memory has forgotten."""
    for _ in range(20):
        engine.scheduler.step()
        while engine.cache.size("full", "host").in_flight:
            engine.scheduler.step()
            time.sleep(0.001)
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


def measure(engine: Engine, tokens: int, rounds: int, rng: np.random.Generator, folder: Path) -> dict[str, Any]:
    """`folder`: for the plain files, on the disk of the store."""
    pages = (tokens - 1) // PAGE
    memcpy = Memcpy(pages * engine.page_bytes["full"])
    arrays = len(engine.pools["full"].page_arrays())
    reads = Reads(folder, pages, engine.page_bytes["full"], arrays)
    times: dict[str, list[float]] = {name: [] for name in COLUMNS}
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
        settle(engine)
        report = engine.cache.persist(60.0)
        assert not report.remaining and not report.dropped
        assert engine.cache.reset()
        settle(engine)
        read, fresh = reads.seconds(reads.plain), reads.seconds(reads.fresh)
        place, verify = reads.seconds(reads.place), reads.seconds(reads.verify)
        l3, request = ask(engine, ids)
        assert request.counts.storage == pages * PAGE
        if number >= 2:
            for name, seconds in zip(COLUMNS, (cold, l1, l2, l3, copy, read, place, verify, fresh), strict=True):
                times[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "ms": {name: 1e3 * value for name, value in medians.items()},
        "ms_best": {name: 1e3 * min(values) for name, values in times.items()},
        "bytes": memcpy.nbytes,
        "l1_of_cold": medians["L1"] / medians["cold"],
        "load_of_memcpy": _more(times, "L2") / medians["memcpy"],
        "fetch_of_read": _more(times, "L3") / medians["read"],
        "fetch_of_passes": _more(times, "L3") / (medians["place"] + medians["verify"] + medians["memcpy"]),
    }


def _more(times: dict[str, list[float]], tier: str) -> float:
    """Median seconds that a hit in `tier` takes more than one in L1."""
    return statistics.median(there - l1 for l1, there in zip(times["L1"], times[tier], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--store", type=Path, default=Path("out"), help="a folder on the disk that L3 is to use")
    parser.add_argument("--out", type=Path, default=Path("out/ttft.json"))
    arguments = parser.parse_args()
    tokens = arguments.tokens
    config = EngineConfig(
        model=arguments.model, device_tokens=2 * tokens, chunk_tokens=arguments.chunk, max_running=1, context=tokens + PAGE
    )
    keep_freed_memory()
    model = load(config)
    rng, rows, like = np.random.default_rng(0), [], None
    print(f"{tokens} tokens; median ms")
    print(
        f"{'host pool':13} {'waits':11}",
        *(f"{name:>9}" for name in COLUMNS),
        "  L1/cold (L2-L1)/memcpy (L3-L1)/read (L3-L1)/passes",
    )
    arguments.store.mkdir(parents=True, exist_ok=True)
    for host_pool, async_impl in product(("per_page", "preallocated"), ("future", "threadpool")):
        with TemporaryDirectory(dir=arguments.store) as folder:
            engine = build(model, config, hicache(2.0, async_impl, host_pool, store=Path(folder, "store")), like)
            like = engine
            row = measure(engine, tokens, arguments.rounds, rng, Path(folder, "plain"))
            engine.cache.close()
        rows.append({"host_pool": host_pool, "async_impl": async_impl, **row})
        print(
            f"{host_pool:13} {async_impl:11}",
            *(f"{row['ms'][name]:9.2f}" for name in COLUMNS),
            f"{row['l1_of_cold']:9.3f} {row['load_of_memcpy']:14.2f} {row['fetch_of_read']:12.2f} {row['fetch_of_passes']:7.2f}",
            flush=True,
        )
    print(f"limits: L1/cold {L1_LIMIT}, (L2-L1)/memcpy {LOAD_LIMIT}, (L3-L1)/read {FETCH_LIMIT}")
    write(arguments.out, {"model": model.model_id, "tokens": tokens, "rounds": arguments.rounds, "rows": rows})


if __name__ == "__main__":
    main()
