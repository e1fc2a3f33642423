"""The peer's worker: runs `bench_vllm_kvm.py` as it is and hands on the figures it has gathered, unrounded.

    python -m radix_tree.peer_vllm --script bench_vllm_kvm.py --clock cpu

The script reads its clock as `time.perf_counter()`. For the CPU clock that name is replaced before the script starts; the
manager's own code reads no clock in what is timed. The script finds its trace beside its own folder.
"""

import argparse
import json
import runpy
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--blocks", type=int, default=20_000)
    args = parser.parse_args()
    if args.clock == "cpu":
        time.perf_counter = time.thread_time
    sys.argv = [str(args.script), str(args.requests), str(args.blocks)]
    found = runpy.run_path(str(args.script), run_name="__main__")
    n = found["n"]
    figures = {phase: 1e6 * seconds / n for phase, seconds in found["T"].items()}
    hit = found["hit"] / found["tot"]
    print(json.dumps(figures | {"total": sum(figures.values()), "hit": hit, "failed": found["fail"], "requests": n}))


if __name__ == "__main__":
    main()
