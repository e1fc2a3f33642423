"""What models with windows or states are run over in every tier: a product of models, sizes and settings, and the prompts for it.

It says how much of a prompt each tier must bring and knows no engine: whoever runs a row builds one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.tokens import floor_page

Ids = npt.NDArray[np.integer[Any]]

GEMMA: Final = "tiny-gemma3"
MIMO: Final = "tiny-mimo-v2-flash"
KIMI: Final = "tiny-kimi-linear"


@dataclass(frozen=True)
class Row:
    """One line of the product: a model, tokens in a page and in a window (0 for the model with states), and how tiers are worked.

    `on`, `waits`, `pool`: `hicache.backup_on`, `async_impl` and `host_pool` of the configuration.
    """

    model: str
    page: int
    window: int
    on: str = "insert"
    waits: str = "future"
    pool: str = "per_page"

    def __str__(self) -> str:
        return f"{self.model[5:]}-page{self.page}-window{self.window}-{self.on}-{self.waits}-{self.pool}"

    @property
    def special(self) -> str:
        """The component besides `full`."""
        return "recurrent" if self.model == KIMI else "swa"

    @property
    def fit(self) -> str:
        """How the window compares with a page."""
        if self.model == KIMI:
            return "no window"
        if self.window <= self.page:
            return "smaller" if self.window < self.page else "equal"
        return "no multiple" if self.window % self.page else "larger"

    @property
    def interval(self) -> int:
        """Tokens between two snapshots of a state."""
        return 6 * self.page

    @property
    def chunk(self) -> int:
        """Tokens. Small, and no whole pages: every size of a chunk is compiled anew."""
        return 28 if self.page == 64 else 13

    def special_units(self, length: int) -> int:
        """What a prefix of `length` needs of `special`: pages of the window, or one state."""
        return 1 if self.model == KIMI else (length - floor_page(max(0, length - self.window + 1), self.page)) // self.page

    def check_loaded(self, counts: Mapping[str, int], full: int, length: int) -> None:
        """`counts`: what a load of a prefix of `length` that lacks `full` pages brought, by component. A load brings whole nodes,
        so of a window it may be up to a chunk more than needed."""
        more = 0 if self.model == KIMI else self.chunk // self.page
        assert counts.get("full", 0) == full
        assert self.special_units(length) <= counts.get(self.special, 0) <= self.special_units(length) + more

    def fetched(self, full: int, length: int) -> dict[str, int]:
        """What a prefix of `length` gets from storage, of which it lacks `full` pages: exactly what it needs."""
        return {name: n for name, n in (("full", full), (self.special, self.special_units(length))) if n}

    def reused(self, common: int) -> int:
        """How far a prompt is reused that leaves the first one after `common` tokens, somewhere in its middle."""
        return common - common % (self.interval if self.model == KIMI else self.page)


WINDOWS = {1: (1, 16), 16: (8, 16, 48, 40), 64: (16, 64, 128, 100)}
"""By page: smaller than a page, equal, larger, and no multiple; with pages of one token only equal and larger."""
SETTINGS = [
    (on, waits, pool) for on in ("insert", "evict") for waits in ("future", "threadpool") for pool in ("per_page", "preallocated")
]
SHAPES = [
    *((model, page, window) for page, windows in WINDOWS.items() for window in windows for model in (GEMMA, MIMO)),
    *((KIMI, page, 0) for page in WINDOWS),
]
PRODUCT: Final = tuple(Row(*shape, *setting) for shape in SHAPES for setting in SETTINGS)
"""Everything with everything, for long runs."""
PAIRS: Final = (
    Row(GEMMA, 1, 1, "insert", "future", "preallocated"),
    Row(MIMO, 1, 16, "evict", "threadpool", "per_page"),
    Row(GEMMA, 16, 8, "evict", "future", "per_page"),
    Row(MIMO, 16, 16, "insert", "threadpool", "per_page"),
    Row(GEMMA, 16, 48, "insert", "future", "preallocated"),
    Row(MIMO, 16, 40, "evict", "future", "preallocated"),
    Row(MIMO, 64, 16, "insert", "threadpool", "preallocated"),
    Row(GEMMA, 64, 64, "evict", "future", "per_page"),
    Row(MIMO, 64, 128, "evict", "future", "preallocated"),
    Row(GEMMA, 64, 100, "insert", "threadpool", "per_page"),
    Row(KIMI, 1, 0, "evict", "future", "per_page"),
    Row(KIMI, 16, 0, "insert", "threadpool", "preallocated"),
    Row(KIMI, 64, 0, "insert", "future", "per_page"),
)
"""Every window of every page, and every pair of values that the product has, for short runs."""


@final
class Prompts:
    """What a row is asked, in token ids: the first prompt, `base`, has more than 20 pages and 5 windows, `branch` leaves it in
    the middle, at `cut`, and one goes on after its answer.

    `answer`: how many tokens each is answered with. `hit`, `turn_hit`: how much of the first, and of the one that goes on, can be
    reused, in tokens.
    """

    def __init__(self, row: Row) -> None:
        rng = np.random.default_rng(row.page)
        page = row.page
        n = max(21 * page + page // 2 + 1, 5 * row.window + 9)
        self.base = rng.integers(0, 256, n)
        self.cut = 13 * page + page // 3
        self.branch = np.concatenate([self.base[: self.cut], rng.integers(0, 256, 2 * page + 3)])
        self.more = rng.integers(0, 256, page + 3)
        self.answer = 12
        self.hit = floor_page(n - 1, page)
        self.turn_hit = floor_page(n + self.answer - 1, page)

    def turn(self, answer: Sequence[int]) -> Ids:
        """The first prompt, how it was answered, and something new."""
        return np.concatenate([self.base, answer, self.more])


def conversations(row: Row, families: int = 4, turns: int = 3) -> list[Ids]:
    """Prompts in token ids, turn by turn over the families, so that a family has left L1 when its next turn comes. Pairs of
    families share a beginning and branch inside a page; odd turns branch off before the end of the turn before."""
    rng = np.random.default_rng(row.page + row.window)
    page = row.page
    beginnings = [rng.integers(0, 256, 9 * page + 5) for _ in range((families + 1) // 2)]
    texts = [
        np.concatenate([beginnings[f // 2][: 9 * page + 5 - f % 2], rng.integers(0, 256, 11 * page + f)]) for f in range(families)
    ]
    made: list[Ids] = []
    for turn in range(turns):
        for family in range(families):
            kept = texts[family][: len(texts[family]) - turn % 2 * (page + 3)]
            texts[family] = np.concatenate([kept, rng.integers(0, 256, page // 2 + 9 + turn)])
            made.append(texts[family])
    return made
