"""The peer's worker: SGLang's trees through the adapters of `bench_sglang_tree.py`, which load the unpacked wheel unmodified.

    python -m radix_tree.peer_sglang operations|eviction|hits|memory --script bench_sglang_tree.py

It runs in the peer's environment (torch, numpy, msgspec) and imports nothing of this project but the workload.
"""

import argparse
import importlib.util
import json
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from radix_tree import workload
from radix_tree.memory import resident

ADAPTERS = {"legacy": "Legacy", "unified-py": "UnifiedPy", "unified-rs": "UnifiedRs", "rust-raw": "RustRaw"}


def load(script: Path) -> Any:
    """The peer script as a module."""
    spec = importlib.util.spec_from_file_location("bench_sglang_tree", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class PeerTree:
    """`workload.Tree` over one adapter. Tokens are `array('q')` and indices int64 tensors, one a token, as SGLang wants them."""

    def __init__(self, script: Any, tree: str) -> None:
        self._torch = script.torch
        self._tree = getattr(script, ADAPTERS[tree])(workload.PAGE)
        self._next = 0

    def tokens(self, ids: workload.Ids) -> Any:
        return array("q", ids.astype(np.int64).tobytes())

    def values(self, n_tokens: int) -> Any:
        self._next += n_tokens
        return self._torch.arange(self._next - n_tokens, self._next, dtype=self._torch.int64)

    def insert(self, tokens: Any, values: Any) -> None:
        self._tree.insert(self._tree.key(tokens), values)

    def match(self, tokens: Any) -> Any:
        return self._tree.match(self._tree.key(tokens))

    def matched(self, match: Any) -> int:
        return match[0]

    def hold(self, match: Any) -> None:
        tree, node = self._tree, match[1]
        tree.unlock(node, tree.lock(node))

    def row(self, tokens: Any) -> int:
        tree = self._tree
        _, node = tree.match(tree.key(tokens))
        lock = tree.lock(node)
        indices = tree.indices(node)
        tree.unlock(node, lock)
        return len(indices)

    def evict(self, n_tokens: int) -> int:
        return self._tree.evict(n_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["operations", "eviction", "hits", "memory", "versions"])
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--tree", choices=list(ADAPTERS), default="unified-rs")
    parser.add_argument("--clock", choices=list(workload.CLOCKS), default="cpu")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--leaves", type=int, default=1000)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=16_777_216)
    args = parser.parse_args()
    script = load(args.script)
    result: Any
    if args.part == "operations":
        result = workload.operations(lambda: PeerTree(script, args.tree), args.clock, args.n)
    elif args.part == "eviction":
        result = workload.eviction(lambda: PeerTree(script, args.tree), args.clock, args.leaves)
    elif args.part == "hits":
        result = workload.eviction_after_hits(lambda: PeerTree(script, args.tree), args.clock, args.leaves)
    elif args.part == "memory":
        before = resident()
        tree = PeerTree(script, args.tree)
        workload.fill(tree, args.length, args.tokens // args.length)
        result = {"resident": (resident() - before) / args.tokens}
    else:
        result = {"torch": script.torch.__version__, "numpy": np.__version__}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
