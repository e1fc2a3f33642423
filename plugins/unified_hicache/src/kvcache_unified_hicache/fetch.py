"""One prompt's way from storage to host memory: what was asked, what is coming into which slots, and what came of it.

It holds the state; `fetches` moves it on. It decides nothing.
"""

from collections.abc import Sequence
from typing import final

import numpy as np

from kvcache_core.contracts.results import NO_INDICES, Indices
from kvcache_unified_hicache.page_bytes import Arrival
from kvcache_unified_hicache.prefix_pages import Flags, PrefixPages


@final
class Request:
    """Pages of one component (`pages`: their numbers in the prompt) for as many `slots`, asked of the storage together."""

    def __init__(self, c: int, pages: list[int], keys: list[str], slots: Indices) -> None:
        self.c = c
        self.pages = pages
        self.keys = keys
        self.slots = slots
        self.sent = False
        self.answered = False
        self.arrival: Arrival | None = None

    def answer(self, arrival: Arrival | None) -> None:
        """None: nothing of it came."""
        self.answered = True
        self.arrival = arrival

    @property
    def came(self) -> Sequence[bool]:
        return [False] * len(self.pages) if self.arrival is None else self.arrival.came


@final
class Fetch:
    """`keys[c]`: the storage key of every page of component `c` that memory does not have. `asked_len`: usable from memory when
    it began. `length`: what was promised then. `span`: the token positions that became usable by it, or by one it waited for.
    `interest`: tickets that wait. `waits_with`: the room of L2 with which it was found that it has to wait for others."""

    def __init__(self, pages: PrefixPages, keys: Sequence[dict[int, str]], asked_len: int) -> None:
        self.pages = pages
        self.keys = keys
        self.asked_len = asked_len
        self.there: Flags | None = None
        self.requests: list[Request] | None = None
        self.waits_for: list[Fetch] = []
        self.length = asked_len
        self.span: tuple[int, int] = (0, 0)
        self.interest = 0
        self.waits_with: tuple[int, ...] | None = None
        self.forgotten = False
        self.done = False

    def answer(self, answers: list[bool]) -> None:
        """Of `exists`, in the order of `keys`."""
        there, at = self.pages.none(), iter(answers)
        for flags, keys in zip(there, self.keys, strict=True):
            for page in keys:
                flags[page] = next(at)
        self.there = there

    @property
    def arrived(self) -> Flags:
        """What came of what it asked for itself."""
        flags = self.pages.none()
        for request in self.requests or ():
            for page, came in zip(request.pages, request.came, strict=True):
                flags[request.c][page] = came
        return flags

    @property
    def complete(self) -> bool:
        """Every answer is there, and whatever it waits for is over."""
        return (
            self.requests is not None
            and all(request.answered for request in self.requests)
            and all(other.done for other in self.waits_for)
        )

    def slots(self, c: int) -> Indices:
        """Host slots of component `c` that it owns."""
        return np.concatenate([NO_INDICES, *(request.slots for request in self.requests or () if request.c == c)])
