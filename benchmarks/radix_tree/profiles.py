"""Where the time goes in what may miss its target: cProfile's own count, and for a long match the floor set by memory.

cProfile charges every call, so shares of small functions are exaggerated; the times of the report come from runs without it.
"""

import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from radix_tree.workload import LEAF, LENGTH, LONG, VOCABULARY, Tree

LINES = 12


def inserts(tree: Tree) -> list[str]:
    """Sequences of 4,096 tokens whose first half is known."""
    random_ids = np.random.default_rng(7)
    head = random_ids.integers(0, VOCABULARY, LENGTH // 2, dtype=np.int32)
    items: list[tuple[Any, Any]] = []
    for _ in range(2000):
        tail = random_ids.integers(0, VOCABULARY, LENGTH // 2, dtype=np.int32)
        items.append((tree.tokens(np.concatenate([head, tail])), tree.values(LENGTH)))
    return _profile(lambda: [tree.insert(*item) for item in items])


def rows(tree: Tree) -> list[str]:
    """Match, lock, page-table row, unlock of one known sequence of 4,096 tokens."""
    ids = np.random.default_rng(7).integers(0, VOCABULARY, LENGTH, dtype=np.int32)
    tokens = tree.tokens(ids)
    tree.insert(tokens, tree.values(LENGTH))
    return _profile(lambda: [tree.row(tokens) for _ in range(5000)])


def long_matches(tree: Tree) -> list[str]:
    """A match of 131,072 tokens, beside comparing as many bytes and nothing else."""
    ids = np.random.default_rng(7).integers(0, VOCABULARY, LONG, dtype=np.int32)
    tokens = tree.tokens(ids)
    tree.insert(tokens, tree.values(LONG))
    one, other = ids.tobytes(), ids.copy().tobytes()
    floor, whole = _median_us(lambda: one == other), _median_us(lambda: tree.match(tokens))
    first = f"the match takes {whole:.1f} us, of which comparing {len(one):,} bytes with as many takes {floor:.1f} us"
    return [first, *_profile(lambda: [tree.match(tokens) for _ in range(2000)])]


def evictions(tree: Tree) -> list[str]:
    """One leaf of 1,000 goes and a fresh one comes; the values of the fresh ones were allocated beforehand."""
    random_ids = np.random.default_rng(11)
    for ids in random_ids.integers(0, VOCABULARY, (1000, LEAF), dtype=np.int32):
        tree.insert(tree.tokens(ids), tree.values(LEAF))
    return _profile(lambda: [tree.evict(LEAF) for _ in range(1000)])


def trace(serve: Callable[[], object]) -> list[str]:
    """`serve` serves the whole trace."""
    return _profile(serve)


def _profile(call: Callable[[], object]) -> list[str]:
    profile = cProfile.Profile()
    profile.runcall(call)
    stats: Any = pstats.Stats(profile)
    found = sorted(stats.stats.items(), key=lambda item: -item[1][2])
    total = sum(numbers[2] for _, numbers in found)
    return [
        f"{100 * own / total:5.1f} %  {calls:8d} calls  {_place(where, name)}"
        for (where, _, name), (_, calls, own, _, _) in found[:LINES]
    ]


def _place(where: str, name: str) -> str:
    return name if where == "~" else f"{Path(where).name}:{name}"


def _median_us(call: Callable[[], object], n: int = 301) -> float:
    taken: list[int] = []
    for _ in range(n):
        start = time.thread_time_ns()
        call()
        taken.append(time.thread_time_ns() - start)
    return sorted(taken)[n // 2] / 1e3
