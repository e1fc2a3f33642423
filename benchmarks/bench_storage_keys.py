"""What the name of a stored page costs: the chain of digests and the storage key of one component, at page sizes 1, 16 and 64.

`chain`: PageKeys.chain over whole prompts. `keys`: storage_keys of one component. `hashlib`: two sha256 a page of the same
numbers of bytes in the shortest loop there is, with digests and texts thrown away: what nobody who hashes pages in Python gets
below. They take turns, and each figure is the median of its rounds.

    python benchmarks/bench_storage_keys.py [--pages 1,16,64] [--tokens 65536] [--rounds 15] [--out out/storage_keys.json]

Target: at most 75 ns a token for both at page 16.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_unified_hicache.storage.page_keys import PageKeys, component_identity, storage_keys

TARGET = 75.0
"""ns a token for chain and keys at page 16."""

# As long as the reference engine's: what a pool says of itself is hashed with every page.
POOL = b"kvcache-engine paged kv 1, float32, layers 0:30, page 16x3x64, heads 0:3 of 3, layout page-head-dim".ljust(140, b".")


def seconds(work: Callable[[], object]) -> float:
    """Of this thread's processor: other jobs share the machine."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def plain(tokens: bytes, page_bytes: int, identity: bytes) -> None:
    sha256 = hashlib.sha256
    digest = bytes(32)
    for start in range(0, len(tokens), page_bytes):
        digest = sha256(digest + tokens[start : start + page_bytes]).digest()
        sha256(digest + identity).hexdigest()


def measure(page_size: int, n_tokens: int, rounds: int) -> dict[str, Any]:
    keys = PageKeys(ModelSpec("org/model", "rev-1", "full_attention"), page_size)
    identity = component_identity("full", POOL)
    n_tokens -= n_tokens % page_size
    tokens = np.random.default_rng(0).integers(0, 50_000, n_tokens).astype("<i4").tobytes()
    root = keys.root(())
    digests = keys.chain(root, tokens)
    works: dict[str, Callable[[], object]] = {
        "chain": lambda: keys.chain(root, tokens),
        "keys": lambda: storage_keys(digests, identity),
        "hashlib": lambda: plain(tokens, 4 * page_size, identity),
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(seconds(work) / n_tokens * 1e9)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    both = [chain + named for chain, named in zip(taken["chain"], taken["keys"], strict=True)]
    ratios = [ours / theirs for ours, theirs in zip(both, taken["hashlib"], strict=True)]
    return {
        "page_size": page_size,
        "tokens": n_tokens,
        "ns_a_token": medians | {"chain + keys": statistics.median(both)},
        "spread_of_chain_and_keys": [min(both), max(both)],
        "ratio_to_hashlib": statistics.median(ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--pages", default="1,16,64", help="page sizes in tokens (default: 1,16,64)")
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", default="out/storage_keys.json")
    args = parser.parse_args()
    rows = [measure(int(text), args.tokens, args.rounds) for text in args.pages.split(",")]
    print(f"{'page':>5} {'chain':>8} {'keys':>8} {'both':>8} {'hashlib':>8} {'ratio':>6}   ns a token")
    for row in rows:
        ns = row["ns_a_token"]
        figures = f"{ns['chain']:8.1f} {ns['keys']:8.1f} {ns['chain + keys']:8.1f} {ns['hashlib']:8.1f}"
        verdict = ""
        if row["page_size"] == 16:
            verdict = f"   target {TARGET:g}: {'met' if ns['chain + keys'] <= TARGET else 'MISSED'}"
        print(f"{row['page_size']:5} {figures} {row['ratio_to_hashlib']:6.2f}{verdict}")
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
    out.write_text(json.dumps({"machine": machine, "identity_bytes": len(POOL), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
