"""The radix tree beside its peers: times of single operations, eviction against size, bytes a token, a trace.

    python benchmarks/bench_radix_tree.py [--quick] [--traces FOLDER]
        [--peers FOLDER --peer-python PATH --sglang FOLDER --vllm FOLDER]

Without peers it still prints our figures. What is measured and how to read it: benchmarks/README.md.
"""

import argparse
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from radix_tree import figures, results, rounds, workload
from radix_tree.figures import Figure, compare

OPERATIONS: dict[str, tuple[str, float | None]] = {
    "insert_4096": ("insert 4,096", 0.7),
    "match_4096": ("match 4,096", 0.5),
    "match_half": ("match 4,096, half known", None),
    "row_4096": ("match 4,096 + page-table row", 0.5),
    "row_half": ("match 4,096, half known + row", None),
    "lock_unlock": ("lock + unlock", 0.7),
    "match_131072": ("match 131,072", 0.12),
    "row_131072": ("match 131,072 + page-table row", None),
    "match_131072_chunks": ("match 131,072 inserted in 16 chunks", None),
    "row_131072_chunks": ("the same + page-table row", None),
    "insert_leaf": ("insert a 128-token leaf", None),
    "insert_leaf_row": ("insert a 128-token leaf + row", 1.5),
    "timer": ("the timer itself", None),
    "insert_faults": ("page faults an insert of 4,096", None),
}
EVICT_TARGET_US = 20
FLAT = 2.0
MEMORY = ((4096, 6.0), (128, 12.0))
PROFILES = {
    "insert 4,096": "insert",
    "match 4,096": "row",
    "lock + unlock": "row",
    "match 131,072": "long",
    "evict one leaf": "evict",
    "trace": "trace",
}
TRACE = "mooncake_conversation_trace.jsonl.gz"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder with " + TRACE)
    parser.add_argument("--peers", type=Path, help="folder with bench_sglang_tree.py and bench_vllm_kvm.py")
    parser.add_argument("--peer-python", type=Path, help="interpreter of an environment with torch, numpy and msgspec")
    parser.add_argument("--sglang", type=Path, help="folder of SGLang's unpacked wheel")
    parser.add_argument("--vllm", type=Path, help="folder of vLLM's unpacked wheel")
    parser.add_argument("--peer-tree", default="unified-rs", choices=["legacy", "unified-py", "unified-rs", "rust-raw"])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each side and clock (default 7)")
    parser.add_argument("--leaves", default="1000,10000,100000,1000000", help="sizes of the tree for eviction")
    parser.add_argument("--peer-leaves", type=int, default=100_000, help="the largest of them that the peer is given")
    parser.add_argument("--quick", action="store_true", help="three rounds, small trees: to see that it works")
    parser.add_argument("--json", type=Path, default=Path("out/bench_radix_tree.json"), help="where the figures go")
    parser.add_argument("--markdown", type=Path, help="write a page of results as well")
    return parser.parse_args()


class Bench:
    """One run: what is asked of which side, in which order."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._ours = rounds.ours()
        self._peers = rounds.peers(args.peers, args.peer_python, args.sglang, args.vllm)
        self._wheels = [folder for folder in (args.sglang, args.vllm) if folder is not None]
        self._tree = ("--tree", args.peer_tree)
        self._peer_leaves = args.peer_leaves
        self._quick = args.quick
        self._rounds = 3 if args.quick else args.rounds
        self._leaves = [1000, 10_000] if args.quick else [int(n) for n in args.leaves.split(",")]

    def versions(self) -> dict[str, str]:
        found: dict[str, Any] = {"python": platform.python_version(), **self._ours.run("versions")}
        if self._peers.sglang is not None:
            found |= {f"peer's {name}": version for name, version in self._peers.sglang.run("versions").items()}
        for wheel in self._wheels:
            for about in wheel.glob("*.dist-info"):
                name, _, version = about.stem.rpartition("-")
                found[f"peer's {name}"] = version
        return found

    def not_run(self) -> list[str]:
        """What the reader misses, and the options that bring it."""
        missing: list[str] = []
        if self._peers.sglang is None:
            missing.append("peer: not run (SGLang's tree: --peers, --peer-python, --sglang)")
        if self._peers.vllm is None:
            missing.append("peer: not run (vLLM's manager: --peers, --peer-python, --vllm)")
        return missing

    def operations(self) -> list[Figure]:
        made: list[Figure] = []
        size = ("--n", "500" if self._quick else "2000")
        for clock in ("cpu", "wall"):
            mine, theirs = self._tree_rounds("operations", "--clock", clock, *size)
            for key, (name, target) in OPERATIONS.items():
                peer = None if theirs is None else [result[key]["median"] for result in theirs]
                mine_us = [result[key]["median"] for result in mine]
                unit = "1" if key == "insert_faults" else "us"
                made.append(compare(name, mine_us, peer, target if clock == "cpu" else None, unit=unit, clock=clock))
        return made

    def eviction(self) -> list[Figure]:
        made: list[Figure] = []
        medians: dict[str, dict[int, list[float]]] = {"counting": {}, "engine": {}}
        for allocator, by_size in medians.items():
            for leaves in self._leaves:
                name = f"evict one leaf of {leaves:,}" + (", engine's allocator" if allocator == "engine" else "")
                options = ("eviction", "--leaves", str(leaves))
                n = min(self._rounds, 3) if leaves >= 1_000_000 else self._rounds
                with_peer = leaves <= self._peer_leaves and allocator == "counting"
                mine, theirs = self._tree_rounds(*options, n=n, with_peer=with_peer, ours_only=("--allocator", allocator))
                key = f"evict_{leaves}"
                by_size[leaves] = [result[key]["median"] for result in mine]
                peer = None if theirs is None else [result[key]["median"] for result in theirs]
                made.append(compare(name, by_size[leaves], peer, EVICT_TARGET_US, absolute=True))
            first, last = min(by_size), max(by_size)
            growth = [figures.spread(by_size[last]).median / figures.spread(by_size[first]).median]
            flat = f"evict one leaf: {last:,} against {first:,}" + (", engine's allocator" if allocator == "engine" else "")
            made.append(compare(flat, growth, None, FLAT, unit="times", absolute=True))
        return made

    def eviction_after_hits(self) -> list[Figure]:
        """The worst case of a lazy queue: its price is paid by one eviction, and bounded by the hits before it."""
        made: list[Figure] = []
        for leaves in self._leaves:
            n, with_peer = min(self._rounds, 3), leaves <= self._peer_leaves
            mine, theirs = self._tree_rounds("hits", "--leaves", str(leaves), n=n, with_peer=with_peer)
            hits = min(leaves, workload.HITS)
            for key, name in (("after_hits", f"evict one leaf of {leaves:,} after {hits:,} hits"), ("a_hit", "the same, a hit")):
                ours, peer = (
                    None if side is None else [result[f"{key}_{leaves}"]["median"] for result in side] for side in (mine, theirs)
                )
                assert ours is not None
                made.append(compare(name, ours, peer))
        return made

    def memory(self) -> list[Figure]:
        made: list[Figure] = []
        for length, target in MEMORY:
            mine, theirs = self._tree_rounds("memory", "--length", str(length), n=1)
            tail = f"a cached token, {length:,}-token tails"
            unit = "bytes"
            made.append(compare(tail, [mine[0]["traced"]], None, target, unit=unit, clock="-", absolute=True))
            peer = None if theirs is None else [theirs[0]["resident"]]
            made.append(compare(tail + ", growth of the process", [mine[0]["resident"]], peer, unit=unit, clock="-"))
            if length == MEMORY[0][0]:
                free = "a token of the pool, engine's free list"
                made.append(compare(free, [mine[0]["free_list"]], None, unit=unit, clock="-", absolute=True))
        return made

    def trace(self, path: Path) -> list[Figure]:
        made: list[Figure] = []
        size = ("--requests", "300" if self._quick else "3000")
        for clock in ("cpu", "wall"):
            served = ("trace", "--trace", str(path.resolve()), "--clock", clock, *size)
            sides: list[tuple[rounds.Worker, tuple[str, ...]]] = [(self._ours, served)]
            if self._peers.vllm is not None:
                sides.append((self._peers.vllm, ("--clock", clock, *size)))
            taken = rounds.take_turns(self._rounds, sides)
            mine, theirs = taken[0], taken[1] if len(taken) > 1 else None
            totals = [result["total"] for result in mine]
            peer = None if theirs is None else [result["total"] for result in theirs]
            target = 0.4 if clock == "cpu" else None
            made.append(compare("trace: bookkeeping a request", totals, peer, target, clock=clock))
            if clock == "wall":
                continue
            unhashed = None if theirs is None else [result["total"] - result["hash"] for result in theirs]
            made.append(compare("the same, peer without its hashing", totals, unhashed))
            hits = None if theirs is None else [100 * result["hit"] for result in theirs]
            made.append(compare("the same: tokens hit", [100 * result["hit"] for result in mine], hits, unit="%", clock="-"))
            for phase in ("match", "alloc", "insert", "free"):
                both = None if theirs is None or phase == "insert" else [result[phase] for result in theirs]
                made.append(compare(f"trace: {phase}", [result[phase] for result in mine], both))
        return made

    def profiles(self, missed: Iterable[str], path: Path | None) -> dict[str, list[str]]:
        """One for each group of figures with a miss in it."""
        made: dict[str, list[str]] = {}
        for start, what in PROFILES.items():
            if any(name.startswith(start) for name in missed):
                extra = () if what != "trace" or path is None else ("--trace", str(path.resolve()))
                made[start] = self._ours.run("profile", "--what", what, *extra)
        return made

    def _tree_rounds(
        self, *options: str, n: int | None = None, with_peer: bool = True, ours_only: tuple[str, ...] = ()
    ) -> tuple[list[Any], list[Any] | None]:
        sides: list[tuple[rounds.Worker, tuple[str, ...]]] = [(self._ours, (*options, *ours_only))]
        if with_peer and self._peers.sglang is not None:
            sides.append((self._peers.sglang, (*options, *self._tree)))
        taken = rounds.take_turns(self._rounds if n is None else n, sides)
        return taken[0], taken[1] if len(taken) > 1 else None


def main() -> int:
    args = arguments()
    bench = Bench(args)
    about = results.about_run(["benchmarks/bench_radix_tree.py", *_without_paths(sys.argv[1:])]) | bench.versions()
    for line in bench.not_run():
        print(line)
    made: list[Figure] = []
    trace = None if args.traces is None else args.traces / TRACE
    for part in (bench.operations, bench.eviction, bench.eviction_after_hits, bench.memory):
        made += _shown(part())
    if trace is None:
        print("trace: not run (--traces FOLDER)")
    else:
        made += _shown(bench.trace(trace))
    missed = [figure.name for figure in made if figure.verdict == "MISS"]
    print("missed: " + ("; ".join(missed) or "nothing"))
    profiles = {} if args.markdown is None else bench.profiles(missed, trace)
    results.write("The radix tree beside its peers", about, made, args.json, args.markdown, profiles)
    return 0


def _shown(made: list[Figure]) -> list[Figure]:
    print(figures.text_table(made) + "\n", flush=True)
    return made


def _without_paths(words: list[str]) -> list[str]:
    """A command that can be published: what follows an option that takes a path is replaced by the option's own name."""
    paths = {"--traces", "--peers", "--peer-python", "--sglang", "--vllm"}
    shown: list[str] = []
    for i, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in paths and value:
            shown.append(f"{option}=<{option[2:]}>")
        elif i and words[i - 1] in paths:
            shown.append(f"<{words[i - 1][2:]}>")
        else:
            shown.append(word)
    return shown


if __name__ == "__main__":
    sys.exit(main())
