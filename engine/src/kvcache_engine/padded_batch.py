"""Turns a batch into arrays of few sizes on the devices: checks it, pads it to its bucket, and finds page and slot of each token.

It knows the components of a model by their reach alone; it computes nothing.
"""

from collections.abc import Mapping
from typing import NamedTuple, final

import jax
import numpy as np
from jax.sharding import NamedSharding

from kvcache_engine.batch import Batch, Numbers, StateSlots
from kvcache_engine.buckets import bucket
from kvcache_engine.model.config import ModelConfig
from kvcache_engine.model.views import PageView, StateView

SMALLEST_CHUNK = 16
_SMALLEST_KEYS = 256


class PagePlaces(NamedTuple):
    """Fields as in `model.views.PageView`, which also has the rotation of the positions."""

    positions: jax.Array
    pages: jax.Array
    slots: jax.Array
    kv_lengths: jax.Array
    page_table: jax.Array
    first: jax.Array

    def rotated(self, cos: jax.Array, sin: jax.Array) -> PageView:
        """With the rotation of the positions."""
        return PageView(cos, sin, self.positions, self.pages, self.slots, self.kv_lengths, self.page_table, self.first)


class PaddedBatch(NamedTuple):
    """`ids`, `positions`: int32 [B', T']; `last`: int32 [B'], the index of each row's last token; the rest by component.
    `width`: pages of context that the programs are made for. `valid_tokens`: how many tokens are real."""

    ids: jax.Array
    positions: jax.Array
    last: jax.Array
    pages: dict[str, PagePlaces]
    states: dict[str, StateView]
    width: int
    valid_tokens: int


@final
class BatchPadder:
    """For one model and pools of `totals` indices by component. Rows and tokens go up to powers of two (T = 1 stays 1), and so do
    the pages of a component without a window; a window's number of pages follows from T."""

    def __init__(
        self, config: ModelConfig, totals: Mapping[str, int], page_size: int, max_chunk: int, sharding: NamedSharding | None
    ) -> None:
        self._config = config
        self._totals = dict(totals)
        self._page_size = page_size
        self._max_chunk = max_chunk
        self._sharding = sharding
        self._reach = {name: mixer.reach() for name, mixer in config.page_mixers().items()}
        self._states = tuple(config.state_mixers())
        self.narrowest = bucket(-(-_SMALLEST_KEYS // page_size))
        """The fewest pages of context that programs are made for."""

    def pad(self, batch: Batch) -> PaddedBatch:
        """Raises ValueError for shapes that do not agree, ids outside the vocabulary, positions outside the context or a page
        table, a page or state missing or out of range, and more tokens than `max_chunk`."""
        self._check(batch)
        rows, steps = batch.ids.shape
        shape = (bucket(rows), 1 if steps == 1 else bucket(steps, SMALLEST_CHUNK))
        width = bucket(-(-int((batch.start + batch.lengths).max()) // self._page_size), self.narrowest)
        ids = np.zeros(shape, np.int32)
        ids[:rows, :steps] = batch.ids
        lengths, start = (np.zeros(shape[0], np.int32) for _ in range(2))
        lengths[:rows], start[:rows] = batch.lengths, batch.start
        positions = start[:, None] + np.arange(shape[1], dtype=np.int32)
        real = np.arange(shape[1]) < lengths[:, None]
        pages = {name: self._places(name, batch.page_tables[name], positions, real, width) for name in self._reach}
        states = {name: self._state_view(name, batch.state_slots[name], start, lengths) for name in self._states}
        return self._placed(ids, positions, np.maximum(lengths - 1, 0), pages, states, width, int(np.count_nonzero(real)))

    def padding(self, shape: tuple[int, int], width: int) -> PaddedBatch:
        """A batch of padding alone, for programs of `shape` (rows, tokens) and `width` pages: it writes nothing."""
        none, row = np.zeros(shape, np.int32), np.zeros(shape[0], np.int32)

        def places(name: str) -> PagePlaces:
            dropped = np.full(shape, 1 + self._totals[name], np.int32)
            table = np.zeros((shape[0], self._table_width(name, shape[1], width)), np.int32)
            return PagePlaces(none, dropped, none, row, table, row)  # pyright: ignore[reportArgumentType]  # placed below

        def view(name: str) -> StateView:
            dropped = np.full(shape[0], 1 + self._totals[name], np.int32)
            return StateView(row, dropped, row, row == 0)  # pyright: ignore[reportArgumentType]  # placed below

        pages, states = {name: places(name) for name in self._reach}, {name: view(name) for name in self._states}
        return self._placed(none, none, row, pages, states, width, 0)

    def _placed(
        self,
        ids: Numbers,
        positions: Numbers,
        last: Numbers,
        pages: dict[str, PagePlaces],
        states: dict[str, StateView],
        width: int,
        valid_tokens: int,
    ) -> PaddedBatch:
        arrays = jax.device_put((ids, positions, last, pages, states), self._sharding)
        return PaddedBatch(*arrays, width=width, valid_tokens=valid_tokens)

    def _table_width(self, name: str, steps: int, width: int) -> int:
        reach = self._reach[name]
        # The most pages that `reach` keys of the first new token and the tokens after it can touch, wherever they begin.
        return width if reach is None else (reach + steps - 1 + self._page_size - 2) // self._page_size + 1

    def _places(self, name: str, table: Numbers, positions: Numbers, real: np.ndarray, width: int) -> PagePlaces:
        page_size, reach = self._page_size, self._reach[name]
        rows, steps = positions.shape
        start, kept = positions[:, 0], self._table_width(name, steps, width)
        begin = np.zeros(rows, np.int32) if reach is None else np.maximum(start - reach + 1, 0) // page_size
        ordinals = begin[:, None] + np.arange(kept, dtype=np.int32)
        whole = np.zeros((rows, table.shape[1]), np.int32)
        whole[: len(table)] = table
        page_table = np.take_along_axis(whole, np.minimum(ordinals, table.shape[1] - 1), axis=1)
        lengths = (start + real.sum(axis=1)).astype(np.int32) * real[:, 0]
        needed = ordinals * page_size < lengths[:, None]
        page_table[ordinals >= table.shape[1]] = 0
        at = np.minimum(positions // page_size - begin[:, None], kept - 1)
        pages = np.take_along_axis(page_table, at, axis=1)
        if not (pages[real] > 0).all():
            raise ValueError("a new token lies on the dummy page 0: its row's page table is too short")
        if reach is not None and not (page_table[needed] > 0).all():
            raise ValueError(f"component {name!r}: a page inside the window of {reach} tokens is missing")
        # Padding must not be written anywhere, the dummy page included: out of range, it is dropped.
        pages = np.where(real, pages, np.int32(1 + self._totals[name]))
        arrays = (positions, pages, positions % page_size, lengths, page_table, begin * np.int32(page_size))
        return PagePlaces(*arrays)  # pyright: ignore[reportArgumentType]  # still on the host

    def _state_view(self, name: str, given: StateSlots, start: Numbers, lengths: Numbers) -> StateView:
        rows = len(given.source)
        source, target = np.zeros(len(start), np.int32), np.full(len(start), 1 + self._totals[name], np.int32)
        source[:rows], target[:rows] = np.where(given.source > 0, given.source, 0), given.target
        return StateView(source, target, lengths, start == 0)  # pyright: ignore[reportArgumentType]  # still on the host

    def _check(self, batch: Batch) -> None:
        rows, steps = batch.ids.shape
        if set(batch.page_tables) != set(self._reach) or set(batch.state_slots) != set(self._states):
            raise ValueError(
                f"this model has pages of {sorted(self._reach)} and states of {sorted(self._states)}; the batch brings "
                f"{sorted(batch.page_tables)} and {sorted(batch.state_slots)}"
            )
        for table in batch.page_tables.values():
            shapes = (batch.start.shape, batch.lengths.shape, table.shape[:1])
            if rows < 1 or table.ndim != 2 or set(shapes) != {(rows,)}:
                raise ValueError(
                    f"ids {batch.ids.shape}, start {batch.start.shape}, lengths {batch.lengths.shape} and page table "
                    f"{table.shape} do not have the same rows"
                )
        if steps > self._max_chunk or int(batch.lengths.min()) < 1 or int(batch.lengths.max()) > steps:
            raise ValueError(f"rows must bring 1 to {min(steps, self._max_chunk)} tokens; lengths are {batch.lengths.tolist()}")
        if int(batch.ids.min()) < 0 or int(batch.ids.max()) >= self._config.vocab_size:
            raise ValueError(f"token ids must be 0 to {self._config.vocab_size - 1}")
        first, last = int(batch.start.min()), int((batch.start + batch.lengths).max())
        for name, table in batch.page_tables.items():
            if first < 0 or last > self._config.context_length or last > table.shape[1] * self._page_size:
                raise ValueError(
                    f"positions {first} to {last} must fit a context of {self._config.context_length} tokens "
                    f"and {table.shape[1]} pages of {self._page_size}"
                )
            if int(table.min()) < 0 or int(table.max()) > self._totals[name]:
                raise ValueError(f"page numbers must be 0 to {self._totals[name]}")
        for name, slots in batch.state_slots.items():
            self._check_slots(name, slots, batch.start)

    def _check_slots(self, name: str, slots: StateSlots, start: Numbers) -> None:
        total = self._totals[name]
        if slots.source.shape != start.shape or slots.target.shape != start.shape:
            raise ValueError(f"component {name!r}: sources {slots.source.shape}, targets {slots.target.shape}, {len(start)} rows")
        read = slots.source[start > 0]
        for kind, numbers in (("source", read), ("target", slots.target)):
            if len(numbers) and (int(numbers.min()) < 1 or int(numbers.max()) > total):
                raise ValueError(f"component {name!r}: {kind} slots are 1 to {total}; got {numbers.tolist()}")
        if len(np.unique(slots.target)) != len(slots.target):
            raise ValueError(f"component {name!r}: two rows write their state to the same slot: {slots.target.tolist()}")
