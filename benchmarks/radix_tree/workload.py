"""The work that every tree is given, in the same loops with the same clock, whatever the tree is.

It runs in the project's environment and in the peer's, so it imports numpy and nothing of either.
"""

import gc
import random
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

PAGE = 16
LENGTH = 4096
LONG = 131_072
LEAF = 128
BATCH = 8
GROUPS = 40
HITS = 100_000
"""The most hits before one eviction; where the tree has more leaves, the oldest are hit."""
VOCABULARY = 150_000

Ids = npt.NDArray[np.int32]
Summary = dict[str, float]
CLOCKS: dict[str, Callable[[], int]] = {"cpu": time.thread_time_ns, "wall": time.perf_counter_ns}


class Tree(Protocol):
    """One tree under test. `tokens` and `values` prepare what a host would hold anyway and are not timed."""

    def tokens(self, ids: Ids) -> Any: ...

    def values(self, n_tokens: int) -> Any:
        """Indices nobody else holds, for `n_tokens`."""
        ...

    def insert(self, tokens: Any, values: Any) -> None: ...

    def match(self, tokens: Any) -> Any: ...

    def matched(self, match: Any) -> int:
        """The length of a match in tokens."""
        ...

    def hold(self, match: Any) -> None:
        """Lock and unlock."""
        ...

    def row(self, tokens: Any) -> int:
        """Match, lock, the indices a kernel reads, unlock; returns the tokens they cover."""
        ...

    def evict(self, n_tokens: int) -> int: ...


class Inputs(NamedTuple):
    """Prompts in the tree's own form. `known` and `probes` share a half with others; `long`: one prompt, whole and cut in 16."""

    known: Sequence[Any]
    probes: Sequence[Any]
    long: Sequence[Sequence[Any]]
    leaves: Sequence[Sequence[Any]]


def inputs(tree: Tree, n: int) -> Inputs:
    """`n` sequences of 4,096 tokens, of which 40 groups share the first half, one of 131,072, and twice `n` leaves of 128."""
    random_ids = np.random.default_rng(7)
    half = LENGTH // 2
    heads = _ids(random_ids, (GROUPS, half))
    known, probes = (
        [tree.tokens(np.concatenate([heads[i % GROUPS], _ids(random_ids, half)])) for i in range(n)] for _ in range(2)
    )
    long_ids = _ids(random_ids, LONG)
    long = [[tree.tokens(long_ids[:end]) for end in range(step, LONG + 1, step)] for step in (LONG, LONG // 16)]
    return Inputs(known, probes, long, [[tree.tokens(ids) for ids in _ids(random_ids, (n, LEAF))] for _ in range(2)])


def operations(new_tree: Callable[[], Tree], clock: str, n: int) -> dict[str, Summary]:
    """All of it is done twice and the second time counts: in the first, memory that a process asks for the first time costs page
    faults, and a server that runs has met them all. `insert_faults` tells whether that worked: it counts them, per insert."""
    given = inputs(new_tree(), n)
    _operations(new_tree, CLOCKS[clock], given)
    gc.collect()  # trees are full of cycles; without this the second one would be given fresh memory
    return _operations(new_tree, CLOCKS[clock], given)


def _operations(new_tree: Callable[[], Tree], tick: Callable[[], int], given: Inputs) -> dict[str, Summary]:
    tree = new_tree()
    out = {"timer": _summary(_timed(tick, lambda _: None, given.known))}
    pairs = [(tokens, tree.values(LENGTH)) for tokens in given.known]
    faults = _page_faults()
    out["insert_4096"] = _summary(_timed(tick, lambda pair: tree.insert(*pair), pairs))
    out["insert_faults"] = {"median": (_page_faults() - faults) / len(pairs)}
    del pairs
    order = list(range(len(given.known)))
    random.Random(3).shuffle(order)
    known, probes = [given.known[i] for i in order], [given.probes[i] for i in order]
    matches = [tree.match(tokens) for tokens in known]
    assert all(tree.matched(match) == LENGTH for match in matches)
    assert all(tree.matched(tree.match(tokens)) == LENGTH // 2 for tokens in probes)
    assert tree.row(known[0]) == LENGTH and tree.row(probes[0]) == LENGTH // 2
    out["match_4096"] = _summary(_timed(tick, tree.match, known))
    out["match_half"] = _summary(_timed(tick, tree.match, probes))
    out["row_4096"] = _summary(_timed(tick, tree.row, known))
    out["row_half"] = _summary(_timed(tick, tree.row, probes))
    out["lock_unlock"] = _summary(_timed(tick, tree.hold, matches))
    del matches, tree
    gc.collect()
    for name, pieces in zip(("131072", "131072_chunks"), given.long, strict=True):
        tree = new_tree()
        for number, tokens in enumerate(pieces):
            tree.insert(tokens, tree.values((number + 1) * (LONG // len(pieces))))
        tokens = pieces[-1]
        assert tree.matched(tree.match(tokens)) == LONG and tree.row(tokens) == LONG
        out[f"match_{name}"] = _summary(_timed(tick, tree.match, [tokens] * 104))
        out[f"row_{name}"] = _summary(_timed(tick, tree.row, [tokens] * 104))
    return out | _leaves(new_tree(), tick, given)


def _leaves(tree: Tree, tick: Callable[[], int], given: Inputs) -> dict[str, Summary]:
    plain, delivered = [[(tokens, tree.values(LEAF)) for tokens in leaves] for leaves in given.leaves]

    def insert_and_deliver(pair: tuple[Any, Any]) -> None:
        tree.insert(*pair)
        tree.row(pair[0])

    return {
        "insert_leaf": _summary(_timed(tick, lambda pair: tree.insert(*pair), plain)),
        "insert_leaf_row": _summary(_timed(tick, insert_and_deliver, delivered)),
    }


def eviction(new_tree: Callable[[], Tree], clock: str, leaves: int, steps: int = 300) -> dict[str, Summary]:
    """A tree of `leaves` leaves of 128 tokens that is full: evict one leaf's worth, insert a fresh leaf, and again."""
    tick = CLOCKS[clock]
    random_ids = np.random.default_rng(11)
    tree = new_tree()
    for at in range(0, leaves, 10_000):
        for ids in _ids(random_ids, (min(10_000, leaves - at), LEAF)):
            tree.insert(tree.tokens(ids), tree.values(LEAF))
    evicted: list[int] = []
    inserted: list[int] = []
    for ids in _ids(random_ids, (steps, LEAF)):
        tokens = tree.tokens(ids)
        start = tick()
        n = tree.evict(LEAF)
        evicted.append(tick() - start)
        assert n == LEAF, n
        values = tree.values(LEAF)
        start = tick()
        tree.insert(tokens, values)
        inserted.append(tick() - start)
    return {f"evict_{leaves}": _summary(evicted), f"insert_leaf_{leaves}": _summary(inserted)}


def eviction_after_hits(new_tree: Callable[[], Tree], clock: str, leaves: int, times: int = 5) -> dict[str, Summary]:
    """The worst case of a queue of victims that is put in order only when it is asked: every leaf was hit since it was queued, in
    another order, and now one goes. `a_hit` is what that eviction costs for each of the hits before it."""
    tick = CLOCKS[clock]
    random_ids = np.random.default_rng(13)
    tree = new_tree()
    oldest: list[Any] = []
    for at in range(0, leaves, 10_000):
        for ids in _ids(random_ids, (min(10_000, leaves - at), LEAF)):
            tokens = tree.tokens(ids)
            tree.insert(tokens, tree.values(LEAF))
            if len(oldest) < HITS:
                oldest.append(tokens)
    order = random.Random(3)
    taken: list[float] = []
    a_hit: list[float] = []
    for _ in range(times):
        order.shuffle(oldest)
        for tokens in oldest:
            tree.hold(tree.match(tokens))
        start = tick()
        n = tree.evict(LEAF)
        taken.append(tick() - start)
        assert n == LEAF, n
        a_hit.append(taken[-1] / len(oldest))
        oldest = [tokens for tokens in oldest if tree.matched(tree.match(tokens)) == LEAF]
    return {f"after_hits_{leaves}": _summary(taken), f"a_hit_{leaves}": _summary(a_hit)}


def fill(tree: Tree, length: int, n: int) -> None:
    """`n` different sequences of `length` tokens, to see what a cached token costs in memory."""
    random_ids = np.random.default_rng(5)
    for _ in range(n):
        tree.insert(tree.tokens(_ids(random_ids, length)), tree.values(length))


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _ids(random_ids: np.random.Generator, shape: int | tuple[int, int]) -> Any:
    return random_ids.integers(0, VOCABULARY, size=shape, dtype=np.int32)


def _timed(tick: Callable[[], int], call: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    """Nanoseconds a call, for each batch of 8: a reading of the CPU clock costs as much as a fifth of a fast call."""
    taken: list[float] = []
    for at in range(0, len(items), BATCH):
        batch = items[at : at + BATCH]
        start = tick()
        for item in batch:
            call(item)
        taken.append((tick() - start) / len(batch))
    return taken


def _summary(nanoseconds: Sequence[float]) -> Summary:
    """Microseconds: the median and the quartiles."""
    low, middle, high = statistics.quantiles(nanoseconds, n=4)
    return {"q1": low / 1e3, "median": middle / 1e3, "q3": high / 1e3}
