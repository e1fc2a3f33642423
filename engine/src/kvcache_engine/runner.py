"""Runs forward passes over paged pools: pads to few compiled shapes, calls the model's programs, keeps pool memory in place.

It knows nothing about requests, caches or sampling; which page belongs to whom is the caller's business.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from kvcache_core.contracts.pools import Buffers
from kvcache_engine.batch import Batch
from kvcache_engine.buckets import buckets
from kvcache_engine.mesh import split_axis
from kvcache_engine.model.config import LayerConfig
from kvcache_engine.model.decoder import decoder_layer, embed_tokens, last_logits, output_logits
from kvcache_engine.model.loaded import LoadedModel
from kvcache_engine.model.views import PageView, StateView
from kvcache_engine.padded_batch import SMALLEST_CHUNK, BatchPadder, PaddedBatch
from kvcache_engine.pools.engine_pool import EnginePool


@final
class ModelRunner:
    """One model over one set of pools. Single-threaded: it belongs to the thread that owns the engine.

    B, T and the pages a row attends to are rounded up to powers of two (T = 1 stays 1), so the number of compiled programs is
    bounded by the logarithms of batch size, `max_chunk` and context length.
    """

    def __init__(
        self,
        model: LoadedModel,
        pools: Mapping[str, EnginePool],
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
        _check_pools(model, pools, page_size)
        if model.mesh != mesh:
            raise ValueError("the model's parameters and the runner must be on the same mesh")
        self._model, self._max_chunk = model, max_chunk
        self._compiled = 0
        self._tokens_computed = 0
        self._max_batch = max_batch
        self._widest = 0
        everywhere = split_axis(mesh, None)
        totals = {name: pool.total_pages for name, pool in pools.items()}
        self._padder = BatchPadder(config, totals, page_size, max_chunk, everywhere)
        # Where each layer's arrays are in its component's pool.
        self._places = [
            (layer.mixer.component, config.layers_of(layer.mixer.component).index(i)) for i, layer in enumerate(config.layers)
        ]
        self._embed = self._program(partial(embed_tokens, config), out=everywhere)
        self._layers: dict[LayerConfig, Callable[..., Any]] = {}
        for layer in config.layers:
            pool = pools[layer.mixer.component]
            out = None if everywhere is None else (everywhere, pool.sharding, pool.sharding)
            if layer not in self._layers:
                # The residual stream and the layer's arrays are donated: writing a page must not copy the pool.
                self._layers[layer] = self._program(partial(decoder_layer, config, layer, pool.dtype), donate=(1, 2, 3), out=out)
        self._all_logits = self._program(partial(output_logits, config), out=everywhere)
        self._last_logits = self._program(partial(last_logits, config), out=everywhere)

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

        Raises ValueError, before anything is donated, for a batch that `BatchPadder.pad` refuses.
        """
        inputs = self._padder.pad(batch)
        if self._max_batch is not None:
            buffers = self._compile_up_to(inputs.width, self._max_batch, buffers)
        params = self._model.params
        x, buffers = self._through(range(len(params.layers)), inputs, buffers)
        if all_logits:
            logits = self._all_logits(params.final_norm, params.output, params.embed, x)
        else:
            logits = self._last_logits(params.final_norm, params.output, params.embed, x, inputs.last)
        self._tokens_computed += inputs.valid_tokens
        return buffers, logits

    def _through(
        self, layers: Iterable[int], inputs: PaddedBatch, buffers: Mapping[str, Buffers]
    ) -> tuple[jax.Array, dict[str, Buffers]]:
        """The residual stream after `layers`, by number, and the buffers that replace `buffers`."""
        params, config = self._model.params, self._model.config
        x, angles = self._embed(params.embed, params.inv_freq, inputs.ids, inputs.positions)
        views: dict[str, PageView | StateView] = dict(inputs.states)
        views |= {name: places.rotated(*angles[name]) for name, places in inputs.pages.items()}
        arrays = {name: (list(held[0]), list(held[1])) for name, held in buffers.items()}
        for i in layers:
            name, at = self._places[i]
            first, second = arrays[name]
            program = self._layers[config.layers[i]]
            x, first[at], second[at] = program(params.layers[i], x, first[at], second[at], views[name])
        return x, {name: held._make(map(tuple, arrays[name])) for name, held in buffers.items()}

    def _compile_up_to(self, width: int, max_batch: int, buffers: Mapping[str, Buffers]) -> Mapping[str, Buffers]:
        """Run every program for page tables of up to `width` pages once, on padding alone: nothing is written, and one layer
        stands for all of its kind. Returns the buffers that replace `buffers`."""
        chunks = buckets(self._max_chunk, SMALLEST_CHUNK)
        shapes = [*((1, steps) for steps in chunks), *((rows, 1) for rows in buckets(max_batch))]
        params, kinds = self._model.params, self._model.config.layers
        while self._widest < width:
            self._widest = 2 * self._widest if self._widest else self._padder.narrowest
            for shape in shapes:
                inputs = self._padder.padding(shape, self._widest)
                x, buffers = self._through([kinds.index(kind) for kind in self._layers], inputs, buffers)
                self._last_logits(params.final_norm, params.output, params.embed, x, inputs.last)
        return buffers

    def _program(self, function: Callable[..., Any], donate: tuple[int, ...] = (), out: Any = None) -> Callable[..., Any]:
        """`function` compiled once per shape, counted when it is traced."""

        def traced(*args: Any) -> Any:
            self._compiled += 1
            with _full_precision():
                return function(*args)

        if out is None:
            return jax.jit(traced, donate_argnums=donate)
        return jax.jit(traced, donate_argnums=donate, out_shardings=out)


def _check_pools(model: LoadedModel, pools: Mapping[str, EnginePool], page_size: int) -> None:
    config = model.config
    if set(pools) != set(config.components):
        raise ValueError(f"this model has the components {list(config.components)}; there are pools for {sorted(pools)}")
    for name, mixer in {**config.page_mixers(), **config.state_mixers()}.items():
        pool, expected, layers = pools[name], mixer.unit_shapes(page_size), len(config.layers_of(name))
        if pool.unit_shapes != expected or pool.layers != layers:
            raise ValueError(
                f"component {name!r}: the model needs {layers} layers of pages {expected}; "
                f"the pool has {pool.layers} of {pool.unit_shapes}"
            )
        if not jnp.issubdtype(pool.dtype, jnp.floating):
            raise ValueError(f"keys, values and states are floating-point numbers; the pool holds {pool.dtype}")


def _full_precision() -> AbstractContextManager[object]:
    """Accelerators multiply float32 matrices in less than float32 unless told otherwise; the CPU does not."""
    return nullcontext() if jax.default_backend() == "cpu" else jax.default_matmul_precision("highest")
