"""Runs scheduled rows on a real model: batch, take the pools, forward, give them back, draw tokens.

The only place that takes the pools for a forward. It does not know requests, and it decides nothing.
"""

from collections.abc import Sequence
from typing import Protocol, final

import jax
import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.pools import PoolSet
from kvcache_core.contracts.results import Indices
from kvcache_engine.batch import Batch, StateSlots
from kvcache_engine.runner import ModelRunner
from kvcache_engine.scheduler import Row


class TokenSampler(Protocol):
    """Chooses the next token of each row: `sampling.Sampler`, or one that also writes down what it is shown."""

    @property
    def compile_count(self) -> int: ...

    def sample(
        self,
        logits: jax.Array,
        temperature: npt.NDArray[np.float32],
        top_p: npt.NDArray[np.float32],
        seed: npt.NDArray[np.uint64],
        position: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int32]: ...


@final
class ModelExecutor:
    """An `Executor` over a model runner and the pools it writes. Belongs to the thread that owns the engine."""

    def __init__(self, runner: ModelRunner, pool_set: PoolSet, sampler: TokenSampler) -> None:
        self._runner = runner
        self._pool_set = pool_set
        self._sampler = sampler

    def execute(self, rows: Sequence[Row]) -> list[int | None]:
        """One token per row that has `sampling`, else None; waits only where a token is drawn."""
        batch = _batch(rows)
        buffers, logits = self._runner.run(self._pool_set.take(), batch)
        self._pool_set.give(buffers)
        drawn = [row.sampling for row in rows if row.sampling is not None]
        if not drawn:
            return [None] * len(rows)
        if len(drawn) != len(rows):
            raise ValueError("a batch draws a token for every row or for none")
        tokens = self._sampler.sample(
            logits,
            temperature=np.array([s.temperature for s in drawn], np.float32),
            top_p=np.array([s.top_p for s in drawn], np.float32),
            seed=np.array([s.seed for s in drawn], np.uint64),
            position=batch.start + batch.lengths,
        )
        return tokens.tolist()

    @property
    def compile_count(self) -> int:
        """Programs traced so far, by the model and by sampling."""
        return self._runner.compile_count + self._sampler.compile_count

    def idle(self) -> None:
        """Dispatch queued transfers: taking the pools does it."""
        self._pool_set.give(self._pool_set.take())


def _batch(rows: Sequence[Row]) -> Batch:
    lengths = np.array([len(row.ids) for row in rows], np.int32)
    ids = np.zeros((len(rows), int(lengths.max())), np.int32)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = row.ids
    start = np.array([row.start for row in rows], np.int32)
    tables = {name: _stack([row.tables[name] for row in rows]) for name in rows[0].tables}
    slots = {name: StateSlots(*np.array([row.states[name] for row in rows], np.int32).T) for name in rows[0].states}
    return Batch(ids, start, lengths, tables, slots)


def _stack(tables: Sequence[Indices]) -> Indices:
    stacked = np.zeros((len(tables), max(len(table) for table in tables)), np.int32)
    for i, table in enumerate(tables):
        stacked[i, : len(table)] = table
    return stacked
