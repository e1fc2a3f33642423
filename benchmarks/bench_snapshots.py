"""What snapshots of recurrent states cost in L2 and in L3, and what they give: bytes and hit rates against their interval.

A small model with recurrent states and latent attention (tiny-kimi-linear) answers the same conversations for every interval,
with the engine of `kvcache run` over L1, L2 and files (LocalFileStorage); then a new engine with nothing but these files answers
other conversations over the same documents ("restart"). Pools have slots for all states of the shortest interval, so that the
interval is the only difference. The last one, as long as the context, leaves only the snapshots that every request makes: at the
end of its prompt and of its answer.

python benchmarks/bench_snapshots.py --quick                                  # to see that it works
python benchmarks/bench_snapshots.py                                          # figures for a page of results
python benchmarks/bench_snapshots.py --intervals 64 256 --out out/mine.json
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from hicache.common import PAGE, build, hicache, load, write
from snapshots.conversations import Workload
from snapshots.holdings import in_files, in_host
from snapshots.serving import TIERS, answer

from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine

CONTEXT = 4096
L1_TOKENS = 6144
RATIO = 1.5
RATES = (*TIERS, "all", "first")


def measure(new_engine: Callable[[], Engine], workload: Workload, store: Path) -> dict[str, Any]:
    """One interval: a pass, and one of later readers by another engine, which shares nothing with the first but `store`."""
    engine = new_engine()
    first = answer(engine, workload.conversations(), workload.answer_tokens)
    held, files = in_host(engine), in_files(engine, store)
    engine.cache.close()
    restarted = new_engine()
    again = answer(restarted, workload.conversations(later=True), workload.answer_tokens)
    restarted.cache.close()
    counters = engine.cache.counters
    return {
        "prompt_tokens": first.all["prompt_tokens"],
        "computed_tokens": first.all["computed_tokens"],
        "hit_rates": first.hit_rates(),
        "hit_rates_after_restart": again.hit_rates(),
        "l2": held.as_dict(),
        "l3": files.as_dict(),
        "bytes_moved": dict(counters.bytes_moved),
        "dropped": dict(counters.dropped),
    }


def row(interval: int, point: Mapping[str, Any]) -> str:
    """A line of the table."""
    cells = ["ends only" if interval >= CONTEXT else f"{interval:>9}"]
    for tier in ("l2", "l3"):
        million: Mapping[str, float] = point[tier]["bytes_per_million_tokens"]
        cells += [f"{million[name] / 2**20:7.1f}" for name in ("full", "recurrent")]
    for when in ("hit_rates", "hit_rates_after_restart"):
        cells += [f"{100 * point[when][tier]:7.1f}" for tier in RATES]
    return " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    intervals_help = "tokens between two snapshots (default: 64 128 256 512 1024)"
    parser.add_argument("--intervals", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help=intervals_help)
    parser.add_argument("--documents", type=int, default=3, help="documents that conversations share (default %(default)s)")
    parser.add_argument("--readers", type=int, default=4, help="conversations over each of them (default %(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="questions in each of them (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="two intervals, few conversations: to see that it works")
    parser.add_argument("--store", type=Path, default=Path("out"), help="a folder on the disk that L3 is to use (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/snapshots.json"), help="where the figures go (%(default)s)")
    arguments = parser.parse_args()
    started = monotonic()
    intervals = [256] if arguments.quick else sorted(arguments.intervals)
    workload = Workload(2, 2, 1) if arguments.quick else Workload(arguments.documents, arguments.readers, arguments.turns)
    base = EngineConfig(
        model="tiny-kimi-linear",
        device_tokens=L1_TOKENS,
        device_states=L1_TOKENS // min(intervals) + 16,
        chunk_tokens=256,
        max_running=1,
        context=CONTEXT,
    )
    model = load(base)
    arguments.store.mkdir(parents=True, exist_ok=True)
    like = build(model, base, None)  # serves nothing: the others take its programs, which are compiled once
    n = workload.documents * workload.readers
    print(f"{n} conversations of {workload.turns} turns over {workload.documents} documents, and as many after a restart")
    print("MiB a million tokens; hit rates in %, of all questions, by tier and together, and of first questions")
    print(f"{'':9} {'L2':>15} {'L3':>15} {'hits':>39} {'hits after a restart':>39}")
    print(" interval", *(f"{name:>7}" for name in ("pages", "states") * 2), *(f"{rate:>7}" for rate in RATES * 2))
    rows: list[dict[str, Any]] = []
    for interval in [*intervals, CONTEXT]:
        config = base.model_copy(update={"snapshot_interval": interval})
        with TemporaryDirectory(dir=arguments.store) as folder:
            tiers = hicache(RATIO, "threadpool", "per_page", store=Path(folder))
            point = measure(partial(build, model, config, tiers, like), workload, Path(folder))
        rows.append({"interval": interval, **point})
        print(row(interval, point), flush=True)
    like.cache.close()
    seconds = monotonic() - started
    about = {"model": model.model_id, "page_size": PAGE, "page_bytes": like.page_bytes, "l1_tokens": L1_TOKENS, "l2_ratio": RATIO}
    write(arguments.out, {**about, "workload": asdict(workload), "seconds": seconds, "rows": rows})
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
