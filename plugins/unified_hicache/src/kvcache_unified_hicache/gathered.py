"""Batches that gathers brought, while copies of them are under way.

One job and one clock for each, however many copies share it. It does not know slots.
"""

from collections.abc import Sequence
from typing import Any, final

import jax

from kvcache_unified_hicache.waiting import Waiting
from kvcache_unified_hicache.workers import Job


@final
class Gathered:
    """One batch. `job` ends when it is complete."""

    __slots__ = ("_dispatched_at", "job", "pages")

    def __init__(self, pages: Any, job: Job, dispatched_at: float) -> None:
        self.pages = pages
        self.job = job
        self._dispatched_at: float | None = dispatched_at

    def take_seconds(self) -> float:
        """From dispatch until complete, for the first copy that asks; the others moved at the same time. Once `job` is done."""
        start, self._dispatched_at = self._dispatched_at, None
        return 0.0 if start is None else self.job.ended() - start


@final
class GatheredBatches:
    """By identity of their pytrees."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        # The value keeps the batch alive, so that no other can take its place.
        self._batches: dict[int, Gathered] = {}

    def of(self, pages: Any, one: jax.Array, dispatched_at: float) -> Gathered:
        """`one`: one array of `pages`. Begins to wait for a batch that was not asked for before."""
        batch = self._batches.get(id(pages))
        if batch is None:
            batch = self._batches[id(pages)] = Gathered(pages, self._waiting.wait_for(pages, one), dispatched_at)
        return batch

    def keep(self, batches: Sequence[Any]) -> None:
        """Only these are under way still: the others are let go."""
        wanted = set(map(id, batches))
        self._batches = {key: batch for key, batch in self._batches.items() if key in wanted}
