"""LocalFileStorage beside bare files and LMCache: writes, warm and cold reads of pages, and a root with very many files.

    python benchmarks/bench_storage_file.py [--quick] [--folder FOLDER] [--files 1000000]
        [--peer-python PATH]

What is measured and how to read it: benchmarks/README.md.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from radix_tree import figures
from radix_tree.figures import Figure, compare
from radix_tree.rounds import STEADY, Worker
from storage_file.guarded import Guarded
from storage_file.many import make_files
from storage_file.peer_side import LMCache
from storage_file.sides import SLICE, Ours, RawFiles, rounds

TARGETS = {"write": 1 / 0.8, "warm": 1 / 0.6, "cold": 1 / 0.9}
"""The most that our time may be of the raw time."""
WORDS = {"write": "write", "warm": "warm read", "cold": "cold read"}
PEER_REQUEST = 50
"""Pages that an engine asks for at a time, and that one side writes or reads before it is the other's turn."""
PATHS = {"--folder", "--peer-python", "--json", "--markdown"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where files are written; a temporary folder unless given")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each side (default 7)")
    parser.add_argument("--mib", type=int, default=256, help="MiB of pages in a round (default 256)")
    parser.add_argument("--batch-mib", type=int, default=8, help="MiB of pages in one call (default 8, as the cache does it)")
    parser.add_argument("--files", type=int, default=20_000, help="small files in the large root (default 20,000)")
    parser.add_argument("--peer-python", type=Path, help="interpreter of an environment with LMCache")
    parser.add_argument("--peer-rounds", type=int, default=5, help="rounds beside the peer (default 5)")
    parser.add_argument("--quick", action="store_true", help="three rounds of a few pages: to see that it works")
    parser.add_argument("--json", type=Path, default=Path("out/bench_storage_file.json"), help="where the figures go")
    parser.add_argument("--markdown", type=Path, help="write a page of results as well")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.mib, args.files, args.peer_rounds = 3, 32, 2000, 1
    return args


def beside_raw_files(folder: Path, nbytes: int, args: argparse.Namespace) -> list[Figure]:
    pages = args.mib * 2**20 // nbytes
    kib = f"{nbytes // 1024:,} KiB"
    several = args.batch_mib * 2**20 // nbytes
    made: list[Figure] = []
    variants: dict[str, tuple[int, dict[str, object]]] = {
        f"{several} a call": (several, {}),
        "1 a call": (1, {}),
        f"{several} a call, max_bytes": (several, {"max_bytes": 2**50}),
    }
    for name, (batch, options) in variants.items():
        raw = RawFiles(folder / "raw", nbytes, pages)
        ours = Ours(folder / "ours", nbytes, pages, batch, **options)
        for what, (mine, theirs) in rounds((ours, raw), args.rounds, max(batch, SLICE // nbytes)).items():
            # The targets are for the way the cache calls it: by batches.
            target = TARGETS[what] if batch > 1 and not options else None
            made.append(compare(f"{WORDS[what]} {kib}, {name}", mine, theirs, target, unit="us a page", clock="wall"))
        for side in (ours, raw):
            side.close()
            shutil.rmtree(side.folder)
    return made


def beside_the_peer(folder: Path, nbytes: int, args: argparse.Namespace) -> list[Figure]:
    """Requests of as many pages with each side's own threads, and one page."""
    pages, kib = args.mib * 2**20 // nbytes, f"{nbytes // 1024:,} KiB"
    made: list[Figure] = []
    for request in (PEER_REQUEST, 1):
        side = Ours(folder / "ours", nbytes, pages, 1) if request == 1 else Guarded(folder / "ours", nbytes, pages, request)
        peer = LMCache(folder / "peer", nbytes, pages, request, args.peer_python)
        for what, (mine, theirs) in rounds((side, peer), args.peer_rounds, PEER_REQUEST).items():
            # Nobody writes one page and waits: LMCache's writes are tasks of its own threads.
            if what != "write" or request > 1:
                name = f"{WORDS[what]} {kib}, {request} at a time, beside LMCache"
                made.append(compare(name, mine, theirs, 1.0, unit="us a page", clock="wall"))
        for each in (side, peer):
            each.close()
            shutil.rmtree(each.folder)
    return made


def large_root(folder: Path, args: argparse.Namespace) -> list[Figure]:
    root = folder / "many"
    make_files(root, args.files)
    worker = Worker("ours", (sys.executable, "-m", "storage_file.many", str(root)))
    made: list[Figure] = []
    size = f"{args.files:,} files"
    for name, options in (("no limit", ()), ("max_bytes", ("--max-bytes", str(2**50)))):
        results = [worker.run(*options) for _ in range(3)]

        def row(what: str, key: str, unit: str, scale: float = 1.0, limit: str = name, found: list = results) -> Figure:
            values = [result[key] * scale for result in found]
            return compare(f"{size}, {limit}: {what}", values, None, unit=unit, clock="wall", absolute=True)

        made += [
            row("open", "open", "ms", 1e3),
            row("first get", "first_get", "ms", 1e3),
            row("first set", "first_set", "ms", 1e3),
        ]
        if options:
            made.append(row("all counted", "counted", "ms", 1e3))
        made += [row("set", "set", "us", 1e6), row("memory", "mib", "MiB")]
    return made


def main() -> int:
    args = arguments()
    if not STEADY.items() <= os.environ.items():
        # glibc reads it at the start: memory that was freed stays with the process, as in a server under load.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | STEADY)
    about = {
        "command": " ".join(["python benchmarks/bench_storage_file.py", *without_paths(sys.argv[1:])]),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    }
    made: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        for nbytes in (256 * 1024, 1024 * 1024):
            made += shown(beside_raw_files(folder, nbytes, args))
            if args.peer_python is None:
                print("peer: not run (LMCache: --peer-python)\n")
            else:
                made += shown(beside_the_peer(folder, nbytes, args))
        made += shown(large_root(folder, args))
    print("missed: " + ("; ".join(figure.name for figure in made if figure.verdict == "MISS") or "nothing"))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"about": about, "figures": [figure.as_dict() for figure in made]}, indent=1) + "\n")
    if args.markdown is not None:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(figures.markdown("LocalFileStorage beside bare files and LMCache", about, made, {}))
    return 0


def shown(made: list[Figure]) -> list[Figure]:
    print(figures.text_table(made) + "\n", flush=True)
    return made


def without_paths(words: list[str]) -> list[str]:
    """A command that can be published: what follows an option that takes a path is replaced by the option's own name."""
    published: list[str] = []
    for at, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in PATHS and value:
            published.append(f"{option}=<{option[2:]}>")
        else:
            published.append(f"<{words[at - 1][2:]}>" if at and words[at - 1] in PATHS else word)
    return published


if __name__ == "__main__":
    sys.exit(main())
