"""Prompts for runs that reuse what an earlier run has stored: texts that share a beginning, and what goes on after them.

Ids below 256, which every tiny model has. It knows no host and no cache.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.tokens import ExtraKey

LENGTHS = {1: 60, 16: 110, 64: 300}
"""By page size, about how many tokens the longest text has."""


class Text(NamedTuple):
    """A prompt to be answered with `max_tokens` tokens."""

    id: str
    ids: npt.NDArray[np.int32]
    max_tokens: int
    seed: int
    extra_key: ExtraKey = ()


def texts(page_size: int) -> list[Text]:
    """Ten texts, of which some share a beginning that ends inside a page, and two differ in the extra key alone."""
    rng = np.random.default_rng(page_size)
    longest = LENGTHS[page_size]
    shared = rng.integers(0, 256, longest // 2 + 3)
    made: list[Text] = []
    for i in range(9):
        own = rng.integers(0, 256, longest // 2 + 2 * i)
        ids = np.concatenate([shared[: len(shared) - i % 3], own] if i % 2 else [rng.integers(0, 256, longest // 3), own])
        made.append(Text(f"text {i}", ids.astype(np.int32), 4 + i % 5, i))
    made.append(Text("tenant", made[1].ids, 5, 9, (b"lora", b"7")))
    return made


def later_texts(earlier: Sequence[Text], page_size: int) -> list[Text]:
    """The same texts again, and some that go on after them or leave them in the middle."""
    rng = np.random.default_rng(100 + page_size)
    more: list[Text] = []
    for i, text in enumerate(earlier[:6]):
        kept = text.ids[: len(text.ids) - (0 if i % 2 else page_size // 2 + 5)]
        ids = np.concatenate([kept, rng.integers(0, 256, page_size + 7)]).astype(np.int32)
        more.append(Text(f"later {i}", ids, 5, 20 + i, text.extra_key))
    return [*earlier, *more]
