"""unified_radix_cache beside radix_cache: what components and L2 cost the tree, in the same run.

python benchmarks/bench_unified_tree.py --markdown out/unified_tree.md

Operations of bench_radix_tree.py, without a peer. Three ways: without L2, with L2 and copies at insert (the default), and with
copies at eviction. Copies themselves are not part of it (bench_owner_thread.py, bench_host_copies.py).
"""

import argparse
import sys
from pathlib import Path

from radix_tree import figures, results, rounds
from radix_tree.figures import Figure, compare

OPERATIONS = {
    "insert_4096": "insert 4,096",
    "match_4096": "match 4,096",
    "lock_unlock": "lock + unlock",
    "row_4096": "match, lock, row, unlock 4,096",
    "match_131072": "match 131,072",
    "insert_leaf_row": "insert a leaf of 128, and its row",
}
TARGET = 1.2
WAYS = {"off": "without L2", "insert": "L2, copies at insert", "evict": "L2, copies at eviction"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--n", type=int, default=2000, help="sequences of 4,096 tokens (default 2,000)")
    parser.add_argument("--leaves", type=int, default=10_000, help="leaves of the tree for eviction (default 10,000)")
    parser.add_argument("--quick", action="store_true", help="three rounds, small trees: to see that it works")
    parser.add_argument("--json", type=Path, default=Path("out/bench_unified_tree.json"), help="where the figures go")
    parser.add_argument("--markdown", type=Path, help="write a page of results as well")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    n, leaves, times = (300, 1000, 3) if args.quick else (args.n, args.leaves, args.rounds)
    radix = rounds.ours()
    unified = rounds.Worker("unified", (sys.executable, "-m", "radix_tree.unified"))
    about = results.about_run(["benchmarks/bench_unified_tree.py", *(["--quick"] if args.quick else [])]) | {
        "peer": "radix_cache, in the same run",
        **radix.run("versions"),
    }
    made: list[Figure] = []
    for part, size in (("operations", ("--n", str(n))), ("eviction", ("--leaves", str(leaves)))):
        sides: list[tuple[rounds.Worker, tuple[str, ...]]] = [(radix, (part, *size))]
        sides += [(unified, (part, *size, "--l2", way)) for way in WAYS]
        taken = rounds.take_turns(times, sides)
        keys = OPERATIONS if part == "operations" else {f"evict_{leaves}": f"evict one leaf of {leaves:,}"}
        for key, name in keys.items():
            plain = [result[key]["median"] for result in taken[0]]
            for way, mine in zip(WAYS, taken[1:], strict=True):
                # The design's bound is for the cache with L2 on, as it is by default.
                target = TARGET if way == "insert" else None
                made.append(compare(f"{name}: {WAYS[way]}", [result[key]["median"] for result in mine], plain, target))
    print(figures.text_table(made))
    results.write("unified_radix_cache beside radix_cache", about, made, args.json, args.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
