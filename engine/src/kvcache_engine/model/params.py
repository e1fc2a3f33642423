"""The parameters of a decoder as a tree of arrays, with the shape and the device layout of each.

It does not know files: a callable gives each parameter by its field name, as the matrices are applied (x @ matrix).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_engine.mesh import mesh_size, split_axis
from kvcache_engine.model.config import LayerConfig, ModelConfig
from kvcache_engine.model.mixer import Shape

Fetch = Callable[[str, int | None], npt.NDArray[np.float32]]
"""(field name, layer or None) -> the parameter on the host, already of the expected shape."""
LayerParams = dict[str, jax.Array]
"""By field name: those of `layer_shapes`."""


class ModelParams(NamedTuple):
    """`embed` [vocab, width]; `output` [width, vocab], or None when the embedding serves as output; `inv_freq`: by component with
    pages, float32 [rotated / 2]."""

    embed: jax.Array
    layers: tuple[LayerParams, ...]
    final_norm: jax.Array
    output: jax.Array | None
    inv_freq: dict[str, jax.Array]


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, Shape]:
    """The fields of one layer with their shapes: its norms, its mixer's and its MLP's."""
    kind, width = config.layers[layer], config.width
    norms = ["attn_norm", "mlp_norm", *(("post_attn_norm", "post_mlp_norm") if kind.post_norms else ())]
    return {**dict.fromkeys(norms, (width,)), **kind.mixer.shapes(width), **kind.mlp.shapes(width)}


def global_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The fields outside the layers, with their shapes."""
    shapes: dict[str, Shape] = {"embed": (config.vocab_size, config.width), "final_norm": (config.width,)}
    if not config.tied:
        shapes["output"] = (config.width, config.vocab_size)
    return shapes


def tensor_count(config: ModelConfig) -> int:
    """How many parameters `place_params` fetches."""
    return len(global_shapes(config)) + sum(len(layer_shapes(config, layer)) for layer in range(len(config.layers)))


def place_params(config: ModelConfig, fetch: Fetch, mesh: Mesh | None, dtype: npt.DTypeLike) -> ModelParams:
    """Fetch every parameter once, in file-independent order, and put it on the devices as `dtype`.

    Raises ShardingError, before anything is fetched, when heads cannot be laid out; what `fetch` raises passes through.
    """
    size = mesh_size(mesh)
    # The embedding is split by channel: a lookup then needs no exchange of rows.
    outside = {"embed": 1 if config.width % size == 0 else None, "output": 1 if config.vocab_size % size == 0 else None}
    axes = [_layer_axes(layer, mesh) for layer in config.layers]

    def place(name: str, layer: int | None = None) -> jax.Array:
        value = np.ascontiguousarray(fetch(name, layer)).astype(dtype, copy=False)
        axis = (outside if layer is None else axes[layer]).get(name)
        return jax.device_put(value, split_axis(mesh, axis), may_alias=False)

    embed = place("embed")
    layers = tuple({name: place(name, i) for name in layer_shapes(config, i)} for i in range(len(config.layers)))
    everywhere = split_axis(mesh, None)
    return ModelParams(
        embed=embed,
        layers=layers,
        final_norm=place("final_norm"),
        output=None if config.tied else place("output"),
        inv_freq={name: jax.device_put(mixer.inv_freq(), everywhere) for name, mixer in config.page_mixers().items()},
    )


def _layer_axes(layer: LayerConfig, mesh: Mesh | None) -> dict[str, int | None]:
    return {**layer.mixer.axes(mesh), **layer.mlp.axes(mesh)}
