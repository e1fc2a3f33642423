"""Storage backends on servers beside their client libraries' own best loops: set, get and exists of pages.

    python benchmarks/bench_storage_engines.py [--quick] [--backend redis]

Every server is started here, on loopback, and ends with it. What is measured and how to read it: benchmarks/README.md.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from radix_tree import figures
from radix_tree.figures import Figure, compare
from radix_tree.rounds import STEADY
from storage_engines.engine import Engine
from storage_engines.mooncake_engine import mooncake_engine
from storage_engines.object_engine import object_engine
from storage_engines.redis_engine import cluster_engine, redis_engine
from storage_engines.sides import WHAT, Sides, rounds

ENGINES: Mapping[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "redis": redis_engine,
    "redis-cluster": cluster_engine,
    "object": object_engine,
    "mooncake": mooncake_engine,
}
SIZES = (256 * 1024, 1024 * 1024)
TARGET = 1 / 0.8
"""The most that our time may be of the library's."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=sorted(ENGINES), help="which one; may be repeated (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each side (default 7)")
    parser.add_argument("--mib", type=int, default=256, help="MiB of pages in a round (default 256)")
    parser.add_argument("--batch-mib", type=int, default=8, help="MiB of pages in one call (default 8, as the cache does it)")
    parser.add_argument("--quick", action="store_true", help="three rounds of a few pages: to see that it works")
    parser.add_argument("--json", type=Path, default=Path("out/bench_storage_engines.json"), help="where the figures go")
    parser.add_argument("--markdown", type=Path, help="write a page of results as well")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.mib = 3, 32
    return args


def beside_the_library(name: str, engine: Engine, nbytes: int, args: argparse.Namespace) -> list[Figure]:
    pages = args.mib * 2**20 // nbytes
    sides = Sides(engine, nbytes, pages, max(1, args.batch_mib * 2**20 // nbytes))
    mine, theirs = rounds(sides, args.rounds)
    sides.close()
    made: list[Figure] = []
    for what in WHAT:
        # Times and not rates, so that the ratio reads as everywhere; the rate stands beside it.
        ours, peer = ([seconds / pages * 1e6 for seconds in of] for of in (mine[what], theirs[what]))
        rate = "" if what == "exists" else f" ({nbytes / figures.spread(ours).median:,.0f} MB/s)"
        title = f"{name}: {what} {nbytes // 1024:,} KiB{rate}"
        made.append(compare(title, ours, peer, TARGET, unit="us a page", clock="wall"))
    return made


def main() -> int:
    args = arguments()
    if not STEADY.items() <= os.environ.items():
        # glibc reads it at the start: memory that was freed stays with the process, as in a server under load.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | STEADY)
    about = {
        "command": " ".join(["python benchmarks/bench_storage_engines.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores, clients and servers on the same",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
    made: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.backend or ENGINES:
            with ENGINES[name](Path(folder) / name) as engine:
                for nbytes in SIZES:
                    some = beside_the_library(name, engine, nbytes, args)
                    print(figures.text_table(some) + "\n", flush=True)
                    made += some
    print("missed: " + ("; ".join(figure.name for figure in made if figure.verdict == "MISS") or "nothing"))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"about": about, "figures": [figure.as_dict() for figure in made]}, indent=1) + "\n")
    if args.markdown is not None:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(figures.markdown("Storage engines beside their client libraries", about, made, {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
