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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from hicache.common import PAGE, build, hicache, load, write
from snapshots.conversations import Workload
from snapshots.holdings import in_files, in_host

from kvcache_core.errors import KVCacheError
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine
from kvcache_engine.prompts_file import PromptLine
from kvcache_engine.results import RequestResult
from kvcache_engine.run import RunReport, Working, serve

TIERS = ("device", "host", "storage")
CONTEXT = 4096
L1_TOKENS = 6144
RATIO = 2.0


class BenchmarkFailed(KVCacheError):
    """A request was not answered, or the storage did not take a page: the figures would be of something else."""


class Silence:
    """A view that shows nothing, and a stop that never comes."""

    requested = False

    def ready(self, engine: Engine, expected: int) -> None: ...
    def finished(self, result: RequestResult, done: int) -> None: ...
    def working(self, state: Working) -> None: ...
    def persisting(self, stored: int, remaining: int) -> None: ...


def answer(engine: Engine, config: EngineConfig, lines: Sequence[PromptLine]) -> RunReport:
    """All of `lines`; the cache is closed afterwards, and L3 has everything. Raises BenchmarkFailed."""
    report = serve(engine, config, lines, Silence(), Silence())
    persisted = report.summary["persisted"]
    if report.summary["errors"] or persisted["remaining"] or persisted["dropped"]:
        raise BenchmarkFailed(f"errors: {report.summary['errors']}, persisted: {persisted}; the figures would mean nothing")
    return report


def rates(report: RunReport) -> dict[str, float]:
    """Hit rates by tier, and of all together."""
    prompt = report.summary["prompt_tokens"]
    return {**{tier: report.summary["cached_tokens"][tier] / prompt for tier in TIERS}, "all": report.summary["hit_rate"]}


def measure(
    new_engine: Callable[[], Engine], config: EngineConfig, lines: Sequence[PromptLine], later: Sequence[PromptLine], store: Path
) -> dict[str, Any]:
    """One interval: `lines`, and `later` by another engine, which shares nothing with the first but `store`."""
    engine = new_engine()
    first = answer(engine, config, lines)
    held, files = in_host(engine), in_files(engine, store)
    again = answer(new_engine(), config, later)
    cache: Mapping[str, Any] = first.summary["cache"]
    return {
        "prompt_tokens": first.summary["prompt_tokens"],
        "hit_rates": rates(first),
        "hit_rates_after_restart": rates(again),
        "l2": held.as_dict(),
        "l3": files.as_dict(),
        "bytes_written_to_l3": cache["bytes_moved"].get("store", 0),
        "dropped": cache["dropped"],
        "attention_tokens": first.summary["attention_tokens"],
    }


def row(interval: int, point: Mapping[str, Any]) -> str:
    """A line of the table."""
    name = "ends only" if interval >= CONTEXT else str(interval)
    cells = [f"{name:>9}"]
    for tier in ("l2", "l3"):
        million: Mapping[str, float] = point[tier]["bytes_per_million_tokens"]
        cells += [f"{million[name] / 2**20:8.1f}" for name in ("full", "recurrent")]
    for when in ("hit_rates", "hit_rates_after_restart"):
        cells += [f"{100 * point[when][tier]:7.1f}" for tier in (*TIERS, "all")]
    return " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--intervals", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="in tokens; default: %(default)s"
    )
    parser.add_argument("--documents", type=int, default=4, help="documents that conversations share (%(default)s)")
    parser.add_argument("--readers", type=int, default=4, help="conversations over each of them (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="questions in each of them (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="two intervals and few conversations: to see that it works")
    parser.add_argument("--store", type=Path, default=Path("out"), help="a folder on the disk that L3 is to use (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/snapshots.json"), help="where the figures go (%(default)s)")
    arguments = parser.parse_args()
    started = monotonic()
    intervals = [256] if arguments.quick else sorted(arguments.intervals)
    workload = Workload(2, 2, 2) if arguments.quick else Workload(arguments.documents, arguments.readers, arguments.turns)
    base = EngineConfig(
        model="tiny-kimi-linear",
        device_tokens=L1_TOKENS,
        device_states=L1_TOKENS // min(intervals) + 32,
        chunk_tokens=256,
        max_running=2,
        context=CONTEXT,
    )
    model, lines, later = load(base), workload.lines(), workload.lines(later=True)
    print(f"{len(lines)} conversations of {workload.turns} turns over {workload.documents} documents, twice for every interval")
    print("MiB a million tokens, hit rates in %")
    print(f"{'':9} {'L2':>17} {'L3':>17} {'hits':>31} {'hits after a restart':>31}")
    print("interval ", *(f"{name:>8}" for name in ("pages", "states") * 2), *(f"{tier:>7}" for tier in (*TIERS, "all") * 2))
    rows: list[dict[str, Any]] = []
    arguments.store.mkdir(parents=True, exist_ok=True)
    like = build(model, base, None)  # serves nothing: the others take its programs, which are compiled once
    for interval in [*intervals, CONTEXT]:
        config = base.model_copy(update={"snapshot_interval": interval})
        with TemporaryDirectory(dir=arguments.store) as folder:
            tiers = hicache(RATIO, "threadpool", "per_page", store=Path(folder))
            point = measure(partial(build, model, config, tiers, like), config, lines, later, Path(folder))
        rows.append({"interval": interval, **point})
        print(row(interval, point), flush=True)
    like.cache.close()
    seconds = monotonic() - started
    about = {"model": model.model_id, "page_size": PAGE, "page_bytes": like.page_bytes, "l1_tokens": L1_TOKENS, "l2_ratio": RATIO}
    write(arguments.out, {**about, "workload": asdict(workload), "seconds": seconds, "rows": rows})
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
