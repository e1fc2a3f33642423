"""Batches that no slot needs any more, until somebody lets them go where it holds up nobody.

Letting go of a batch of 60 arrays costs 100 to 250 us (buffers, their memory, cold caches): too much for the thread that owns the
engine, nothing for a worker. It does not know slots or threads.
"""

import time
from typing import final

import jax

from kvcache_core.contracts.pools import Pages


@final
class Discards:
    """Filled by host pools, emptied by whoever owns the workers. `nbytes`: what is here."""

    def __init__(self) -> None:
        self._batches: list[Pages] = []
        self.nbytes = 0

    def add(self, pages: Pages, nbytes: int) -> None:
        self._batches.append(pages)
        self.nbytes += nbytes

    def take(self) -> list[Pages]:
        """All of them; the list is the caller's. Dropping it lets them go at once."""
        taken, self._batches = self._batches, []
        self.nbytes = 0
        return taken


def let_go(batches: list[Pages]) -> None:
    """Empty the list on a worker, array by array: one batch at once would keep the interpreter from the owner thread as long as
    if that thread did it."""
    while batches:
        arrays = jax.tree.leaves(batches.pop())
        while arrays:
            arrays.pop()
            time.sleep(0)
