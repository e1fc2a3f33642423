"""The parameters of a decoder as a tree of arrays, with the shape and the device layout of each.

It does not know files: a callable gives each parameter by its field name, as the matrices are applied (x @ matrix).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_engine.mesh import heads_are_split, mesh_size, split_axis
from kvcache_engine.model.config import ModelConfig

Shape = tuple[int, ...]
Fetch = Callable[[str, int | None], npt.NDArray[np.float32]]
"""(field name, layer or None) -> the parameter on the host, already of the expected shape."""


class LayerParams(NamedTuple):
    """One layer. Matrices are [in, out]; norms [width], per-head norms [head_dim], or None."""

    attn_norm: jax.Array
    q: jax.Array
    k: jax.Array
    v: jax.Array
    o: jax.Array
    mlp_norm: jax.Array
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    q_norm: jax.Array | None = None
    k_norm: jax.Array | None = None


class ModelParams(NamedTuple):
    """`embed` [vocab, width]; `output` [width, vocab], or None when the embedding serves as output; `inv_freq` [head_dim / 2]."""

    embed: jax.Array
    layers: tuple[LayerParams, ...]
    final_norm: jax.Array
    output: jax.Array | None
    inv_freq: jax.Array


def layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The fields every layer of `config` has, with their shapes."""
    width, mlp, dim = config.width, config.mlp_width, config.head_dim
    shapes: dict[str, Shape] = {
        "attn_norm": (width,),
        "q": (width, config.heads * dim),
        "k": (width, config.kv_heads * dim),
        "v": (width, config.kv_heads * dim),
        "o": (config.heads * dim, width),
        "mlp_norm": (width,),
        "gate": (width, mlp),
        "up": (width, mlp),
        "down": (mlp, width),
    }
    if config.qk_norm:
        shapes |= {"q_norm": (dim,), "k_norm": (dim,)}
    return shapes


def global_shapes(config: ModelConfig) -> dict[str, Shape]:
    """The fields outside the layers, with their shapes."""
    shapes: dict[str, Shape] = {"embed": (config.vocab_size, config.width), "final_norm": (config.width,)}
    if not config.tied:
        shapes["output"] = (config.width, config.vocab_size)
    return shapes


def split_axes(config: ModelConfig, mesh: Mesh | None) -> dict[str, int | None]:
    """The axis of each matrix that is split over the mesh; fields not named, and None, are replicated.

    Columns going into heads or the MLP and rows coming out of them are split alike, so each half of a layer needs one sum over
    devices. The embedding is split by channel: a lookup then needs no exchange of rows.

    Raises ShardingError when the kv heads cannot be laid out.
    """
    size = mesh_size(mesh)
    kv_split = heads_are_split(mesh, config.kv_heads)
    q_split = config.heads % size == 0
    mlp_split = config.mlp_width % size == 0
    return {
        "q": 1 if q_split else None,
        "k": 1 if kv_split else None,
        "v": 1 if kv_split else None,
        "o": 0 if q_split else None,
        "gate": 1 if mlp_split else None,
        "up": 1 if mlp_split else None,
        "down": 0 if mlp_split else None,
        "embed": 1 if config.width % size == 0 else None,
        "output": 1 if config.vocab_size % size == 0 else None,
    }


def place_params(config: ModelConfig, fetch: Fetch, mesh: Mesh | None, dtype: npt.DTypeLike) -> ModelParams:
    """Fetch every parameter once, in file-independent order, and put it on the devices as `dtype`.

    Raises ShardingError before anything is fetched; what `fetch` raises passes through.
    """
    axes = split_axes(config, mesh)

    def place(name: str, layer: int | None = None) -> jax.Array:
        value = np.ascontiguousarray(fetch(name, layer)).astype(dtype, copy=False)
        return jax.device_put(value, split_axis(mesh, axes.get(name)), may_alias=False)

    embed = place("embed")
    names = layer_shapes(config)
    layers = tuple(LayerParams(**{name: place(name, layer) for name in names}) for layer in range(config.layers))
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    inv_freq = (config.rope_base**-exponents).astype(np.float32)
    return ModelParams(
        embed=embed,
        layers=layers,
        final_norm=place("final_norm"),
        output=None if config.tied else place("output"),
        inv_freq=jax.device_put(inv_freq, split_axis(mesh, None)),
    )
