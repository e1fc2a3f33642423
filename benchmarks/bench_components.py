"""What a model with three components costs unified_radix_cache, beside the same with full attention alone, in the same run.

Operations of bench_unified_tree.py, without and with L2. "ours" is the tree over full attention, a sliding window and a recurrent
state; "peer" the same tree, the same prompts and the same tier, over full attention alone. Wanted: at most 2.5. Copies themselves
are not part of it, and neither is a model.

python benchmarks/bench_components.py --quick                                  # to see that it works
python benchmarks/bench_components.py --markdown out/components.md             # figures for a page of results
python benchmarks/bench_components.py --ways off --profile                     # and where the time goes
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from radix_tree import figures, results, rounds
from radix_tree.figures import Figure, compare
from radix_tree.layouts import INTERVAL, LAYOUTS, WINDOW

TARGET = 2.5
OPERATIONS = {
    "insert_4096": "insert 4,096",
    "match_4096": "match 4,096",
    "lock_unlock": "lock + unlock",
    "row_4096": "match, lock, rows, unlock 4,096",
    "insert_leaf": "insert a leaf of 128",
    "insert_leaf_row": "insert a leaf of 128, and its rows",
    "match_131072": "match 131,072",
}
NO_TARGET = ("match_131072",)
"""A state after every interval cuts the path into as many nodes, of which full attention alone has a sixteenth."""
WAYS = {"off": "without L2", "insert": "L2, copies at insert", "evict": "L2, copies at eviction"}
PROFILED = {"insert_4096": "insert", "row_4096": "row"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="default 7; both sides run in each, one after the other")
    parser.add_argument("--n", type=int, default=600, help="sequences of 4,096 tokens (default 600)")
    parser.add_argument("--leaves", type=int, default=2000, help="leaves of the tree for eviction (default 2,000)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=["off", "insert"], help="default: off insert")
    parser.add_argument("--quick", action="store_true", help="one round, small trees: to see that it works")
    parser.add_argument("--profile", action="store_true", help="also print where the time of an insert and of a row goes")
    parser.add_argument("--out", type=Path, default=Path("out/components.json"), help="where the figures go (%(default)s)")
    parser.add_argument("--markdown", type=Path, help="write a page of results as well")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    n, leaves, times = (200, 500, 1) if args.quick else (args.n, args.leaves, args.rounds)
    worker = rounds.Worker("unified", (sys.executable, "-m", "radix_tree.unified"))
    about = results.about_run(["benchmarks/bench_components.py", *(["--quick"] if args.quick else [])]) | {
        "ours": f"{', '.join(LAYOUTS['hybrid'].names)}; windows of {WINDOW} tokens, a state after every {INTERVAL}",
        "peer": "full alone, in the same run",
        **rounds.ours().run("versions"),
    }
    sides = [(way, components) for way in args.ways for components in ("full", "hybrid")]
    taken: list[list[dict[str, Any]]] = [[{} for _ in range(times)] for _ in sides]
    for part, size in (("operations", ("--n", str(n))), ("eviction", ("--leaves", str(leaves)))):
        commands = [(worker, (part, *size, "--l2", way, "--components", components)) for way, components in sides]
        for side, results_of_side in zip(taken, rounds.take_turns(times, commands), strict=True):
            for mine, result in zip(side, results_of_side, strict=True):
                mine |= result
    evict = f"evict_{leaves}"
    made: list[Figure] = []
    for name, keys, target in [
        *((name, (key,), None if key in NO_TARGET else TARGET) for key, name in OPERATIONS.items()),
        (f"evict one leaf of {leaves:,}", (evict,), TARGET),
        ("a request: rows, insert 4,096, evict one leaf", ("row_4096", "insert_4096", evict), TARGET),
    ]:
        for way, full, hybrid in zip(args.ways, taken[::2], taken[1::2], strict=True):
            ours, peer = ([sum(result[key]["median"] for key in keys) for result in side] for side in (hybrid, full))
            made.append(compare(f"{name}: {WAYS[way]}", ours, peer, target))
    print(figures.text_table(made))
    profiles = {
        f"{OPERATIONS[key]}: {WAYS[way]}": worker.run("profile", "--what", what, "--l2", way, "--components", "hybrid")
        for key, what in PROFILED.items()
        for way in (args.ways if args.profile else ())
    }
    for name, lines in profiles.items():
        print("\n".join(["", name, *lines]))
    results.write("Three components beside one", about, made, args.out, args.markdown, profiles)
    print(f"written to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
