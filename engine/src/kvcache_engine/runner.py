"""Runs forward passes over paged pools: pads to few compiled shapes, calls the model's programs, keeps pool memory in place.

It knows nothing about requests, caches or sampling; which page belongs to whom is the caller's business.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_engine.buckets import bucket, buckets
from kvcache_engine.mesh import split_axis
from kvcache_engine.model.llama import Context, decoder_layer, embed_tokens, last_logits, output_logits
from kvcache_engine.model.loaded import LoadedModel
from kvcache_engine.pools.paged_kv_pool import Buffers, PagedKVPool

_COMPONENT = "full"
_SMALLEST_CHUNK = 16
_SMALLEST_KEYS = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward of B rows, each with up to T new tokens. All arrays are int32, owned by the caller and only read.

    ids: [B, T]; start: [B], absolute position of ids[:, 0]; lengths: [B], how many of a row's T tokens are real (at least 1);
    page_tables: by component [B, P], page number by page ordinal, 0 (the dummy) where a row has no page.
    """

    ids: npt.NDArray[np.int32]
    start: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    page_tables: Mapping[str, npt.NDArray[np.int32]]


@final
class ModelRunner:
    """One model over one set of pools. Single-threaded: it belongs to the thread that owns the engine.

    B, T and the pages a row attends to are rounded up to powers of two (T = 1 stays 1), so the number of compiled programs is
    bounded by the logarithms of batch size, `max_chunk` and context length.
    """

    def __init__(
        self,
        model: LoadedModel,
        pools: Mapping[str, PagedKVPool],
        page_size: int,
        mesh: Mesh | None = None,
        *,
        max_chunk: int = 512,
        max_batch: int | None = None,
    ) -> None:
        """`max_chunk`: the most new tokens a row may bring. `max_batch`: the most rows of one token each; with it, the first
        batch of a new context size compiles every program that this size and smaller ones can need (one row of any length, or any
        number of rows of one token), so that later batches of whatever mixture compile nothing.

        Raises ValueError when pools and model do not fit.
        """
        config = model.config
        if set(pools) != {_COMPONENT}:
            raise ValueError(f"this model has the component {_COMPONENT!r}; there are pools for {sorted(pools)}")
        pool = pools[_COMPONENT]
        expected = (page_size, config.kv_heads, config.head_dim)
        if pool.page_shape != expected or pool.layers != config.layers:
            raise ValueError(
                f"the model needs {config.layers} layers of pages {expected}; the pool has {pool.layers} of {pool.page_shape}"
            )
        if not jnp.issubdtype(pool.dtype, jnp.floating):
            raise ValueError(f"keys and values are floating-point numbers; the pool holds {pool.dtype}")
        if model.mesh != mesh:
            raise ValueError("the model's parameters and the runner must be on the same mesh")
        self._model, self._pool, self._page_size, self._max_chunk = model, pool, page_size, max_chunk
        self._compiled = 0
        self._tokens_computed = 0
        self._max_batch = max_batch
        self._narrowest = bucket(-(-_SMALLEST_KEYS // page_size))
        self._widest = 0
        self._everywhere = split_axis(mesh, None)
        spread = pool.sharding
        layer_out = None if spread is None else (self._everywhere, spread, spread)
        self._embed = self._program(embed_tokens, out=self._everywhere)
        # The residual stream and the layer's pools are donated: writing a page must not copy the pool.
        self._layer = self._program(partial(decoder_layer, config, pool.dtype), donate=(1, 2, 3), out=layer_out)
        self._all_logits = self._program(partial(output_logits, config), out=self._everywhere)
        self._last_logits = self._program(partial(last_logits, config), out=self._everywhere)

    @property
    def compile_count(self) -> int:
        """Programs traced so far; constant once every shape of a workload has been seen."""
        return self._compiled

    @property
    def tokens_computed(self) -> int:
        """Query positions that went through attention, padding not counted."""
        return self._tokens_computed

    def run(
        self, buffers: Mapping[str, Buffers], batch: Batch, *, all_logits: bool = False
    ) -> tuple[dict[str, Buffers], jax.Array]:
        """Compute `batch`, writing its keys and values into its pages. Only dispatches; nothing is waited for.

        `buffers` are donated and replaced by the first result. The second is the float32 logits that follow each row's last
        real token, [B', vocab], or with `all_logits` those of every position, [B', T', vocab]: B' >= B and T' >= T are the
        padded sizes, and what lies beyond B, or beyond a row's length, is meaningless.

        Raises ValueError, before anything is donated, for shapes that do not agree, ids outside the vocabulary, positions
        outside the context or the page table, and more tokens than `max_chunk`.
        """
        inputs = self._prepare(batch)
        if self._max_batch is not None:
            buffers = self._compile_up_to(inputs.page_table.shape[1], self._max_batch, buffers)
        params = self._model.params
        k_pools, v_pools = list(buffers[_COMPONENT].k), list(buffers[_COMPONENT].v)
        x, cos, sin = self._embed(params.embed, params.inv_freq, inputs.ids, inputs.positions)
        context = Context(cos, sin, inputs.positions, inputs.pages, inputs.slots, inputs.kv_lengths, inputs.page_table)
        for i, layer in enumerate(params.layers):
            x, k_pools[i], v_pools[i] = self._layer(layer, x, k_pools[i], v_pools[i], context)
        if all_logits:
            logits = self._all_logits(params.final_norm, params.output, params.embed, x)
        else:
            logits = self._last_logits(params.final_norm, params.output, params.embed, x, inputs.last)
        self._tokens_computed += inputs.valid_tokens
        return {**buffers, _COMPONENT: Buffers(tuple(k_pools), tuple(v_pools))}, logits

    def _compile_up_to(self, width: int, max_batch: int, buffers: Mapping[str, Buffers]) -> Mapping[str, Buffers]:
        """Run every program for page tables of up to `width` pages once, on padding alone: nothing is written, and one layer
        stands for all. Returns the buffers that replace `buffers`."""
        chunks = buckets(self._max_chunk, _SMALLEST_CHUNK)
        shapes = [*((1, steps) for steps in chunks), *((rows, 1) for rows in buckets(max_batch))]
        while self._widest < width:
            self._widest = 2 * self._widest if self._widest else self._narrowest
            for shape in shapes:
                buffers = self._run_padding(shape, self._widest, buffers)
        return buffers

    def _run_padding(self, shape: tuple[int, int], width: int, buffers: Mapping[str, Buffers]) -> Mapping[str, Buffers]:
        none, row = np.zeros(shape, np.int32), np.zeros(shape[0], np.int32)
        dropped = np.full(shape, 1 + self._pool.total_pages, np.int32)
        arrays = (none, none, dropped, none, row, np.zeros((shape[0], width), np.int32), row)
        inputs = _Inputs(*jax.device_put(arrays, self._everywhere), valid_tokens=0)
        params, (k_pools, v_pools) = self._model.params, buffers[_COMPONENT]
        x, cos, sin = self._embed(params.embed, params.inv_freq, inputs.ids, inputs.positions)
        context = Context(cos, sin, inputs.positions, inputs.pages, inputs.slots, inputs.kv_lengths, inputs.page_table)
        x, k, v = self._layer(params.layers[0], x, k_pools[0], v_pools[0], context)
        self._last_logits(params.final_norm, params.output, params.embed, x, inputs.last)
        return {**buffers, _COMPONENT: Buffers((k, *k_pools[1:]), (v, *v_pools[1:]))}

    def _prepare(self, batch: Batch) -> "_Inputs":
        """Check `batch`, pad it to its bucket, and turn positions into pages and slots."""
        table = batch.page_tables[_COMPONENT]
        self._check(batch, table)
        rows, steps = batch.ids.shape
        ends = batch.start + batch.lengths
        pages_needed = -(-int(ends.max()) // self._page_size)
        shape = (bucket(rows), 1 if steps == 1 else bucket(steps, _SMALLEST_CHUNK))
        width = bucket(pages_needed, self._narrowest)

        ids = np.zeros(shape, np.int32)
        ids[:rows, :steps] = batch.ids
        lengths, start, kv_lengths = (np.zeros(shape[0], np.int32) for _ in range(3))
        lengths[:rows], start[:rows], kv_lengths[:rows] = batch.lengths, batch.start, ends
        page_table = np.zeros((shape[0], width), np.int32)
        used = min(width, table.shape[1])
        page_table[:rows, :used] = table[:, :used]

        positions = start[:, None] + np.arange(shape[1], dtype=np.int32)
        valid = np.arange(shape[1]) < lengths[:, None]
        ordinal = np.minimum(positions // self._page_size, width - 1)
        pages = np.take_along_axis(page_table, ordinal, axis=1)
        if not (pages[valid] > 0).all():
            raise ValueError("a new token lies on the dummy page 0: its row's page table is too short")
        # Padding must not be written anywhere, the dummy page included: out of range, it is dropped.
        pages = np.where(valid, pages, np.int32(1 + self._pool.total_pages))
        arrays = (ids, positions, pages, positions % self._page_size, kv_lengths, page_table, np.maximum(lengths - 1, 0))
        return _Inputs(*jax.device_put(arrays, self._everywhere), valid_tokens=int(np.count_nonzero(valid)))

    def _check(self, batch: Batch, table: npt.NDArray[np.int32]) -> None:
        rows, steps = batch.ids.shape
        if rows < 1 or batch.start.shape != (rows,) or batch.lengths.shape != (rows,) or table.ndim != 2 or len(table) != rows:
            raise ValueError(
                f"ids {batch.ids.shape}, start {batch.start.shape}, lengths {batch.lengths.shape} and page table {table.shape} "
                "do not have the same rows"
            )
        if steps > self._max_chunk or int(batch.lengths.min()) < 1 or int(batch.lengths.max()) > steps:
            raise ValueError(f"rows must bring 1 to {min(steps, self._max_chunk)} tokens; lengths are {batch.lengths.tolist()}")
        last = int((batch.start + batch.lengths).max())
        if int(batch.start.min()) < 0 or last > self._model.config.context_length or last > table.shape[1] * self._page_size:
            raise ValueError(
                f"positions {int(batch.start.min())} to {last} must fit a context of {self._model.config.context_length} tokens "
                f"and {table.shape[1]} pages of {self._page_size}"
            )
        if int(batch.ids.min()) < 0 or int(batch.ids.max()) >= self._model.config.vocab_size:
            raise ValueError(f"token ids must be 0 to {self._model.config.vocab_size - 1}")
        if int(table.min()) < 0 or int(table.max()) > self._pool.total_pages:
            raise ValueError(f"page numbers must be 0 to {self._pool.total_pages}")

    def _program(self, function: Callable[..., Any], donate: tuple[int, ...] = (), out: Any = None) -> Callable[..., Any]:
        """`function` compiled once per shape, counted when it is traced."""

        def traced(*args: Any) -> Any:
            self._compiled += 1
            with _full_precision():
                return function(*args)

        if out is None:
            return jax.jit(traced, donate_argnums=donate)
        return jax.jit(traced, donate_argnums=donate, out_shardings=out)


class _Inputs(NamedTuple):
    """A padded batch on the devices; fields as in `model.llama.Context`, and `last` [B], the index of each row's last token."""

    ids: jax.Array
    positions: jax.Array
    pages: jax.Array
    slots: jax.Array
    kv_lengths: jax.Array
    page_table: jax.Array
    last: jax.Array
    valid_tokens: int


def _full_precision() -> AbstractContextManager[object]:
    """Accelerators multiply float32 matrices in less than float32 unless told otherwise; the CPU does not."""
    return nullcontext() if jax.default_backend() == "cpu" else jax.default_matmul_precision("highest")
