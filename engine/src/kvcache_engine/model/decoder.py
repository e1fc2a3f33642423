"""The arithmetic of a decoder, one function for each program the runner compiles.

A layer is a program of its own, compiled once for all layers of its kind: compile time does not grow with depth, and on the CPU,
where a call costs tens of microseconds, running it 30 times costs nothing measurable. Weights are always arguments, never
constants.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from kvcache_engine.model.config import LayerConfig, ModelConfig
from kvcache_engine.model.norm import rms_norm
from kvcache_engine.model.params import LayerParams
from kvcache_engine.model.rope import rope_angles
from kvcache_engine.model.views import PageView, StateView

Angles = dict[str, tuple[jax.Array, jax.Array]]
"""By component with pages: cos and sin of its rotation, float32 [B, T, rotated / 2] each."""


def embed_tokens(
    config: ModelConfig, embed: jax.Array, inv_freq: Mapping[str, jax.Array], ids: jax.Array, positions: jax.Array
) -> tuple[jax.Array, Angles]:
    """The residual stream [B, T, width] of `ids` [B, T], and the rotations of their positions."""
    x = embed.at[ids].get(mode="promise_in_bounds")
    if config.embed_scale != 1.0:
        x = x * jnp.asarray(config.embed_scale, x.dtype)
    return x, {name: rope_angles(positions, frequencies) for name, frequencies in inv_freq.items()}


def decoder_layer(
    config: ModelConfig,
    layer: LayerConfig,
    dtype: np.dtype,
    params: LayerParams,
    x: jax.Array,
    first: jax.Array,
    second: jax.Array,
    view: PageView | StateView,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One layer: `x` [B, T, width] and the layer's two arrays of its component's pool (true type `dtype`) go in, their successors
    come out. `view` is of the kind that the mixer takes. The caller donates all three."""
    h = rms_norm(x, params["attn_norm"], config.norm_eps)
    out, (first, second) = layer.mixer.mix(params, h, (first, second), view, dtype, config.norm_eps)
    if layer.post_norms:
        out = rms_norm(out, params["post_attn_norm"], config.norm_eps)
    x = x + out
    out = layer.mlp.apply(params, rms_norm(x, params["mlp_norm"], config.norm_eps))
    if layer.post_norms:
        out = rms_norm(out, params["post_mlp_norm"], config.norm_eps)
    return x + out, first, second


def output_logits(
    config: ModelConfig, final_norm: jax.Array, output: jax.Array | None, embed: jax.Array, x: jax.Array
) -> jax.Array:
    """float32 logits [B, T, vocab] of the residual stream; the embedding serves as output matrix when `output` is None."""
    h = rms_norm(x, final_norm, config.norm_eps)
    if output is None:
        return jnp.einsum("btd,vd->btv", h, embed, preferred_element_type=jnp.float32)
    return jnp.einsum("btd,dv->btv", h, output, preferred_element_type=jnp.float32)


def last_logits(
    config: ModelConfig, final_norm: jax.Array, output: jax.Array | None, embed: jax.Array, x: jax.Array, last: jax.Array
) -> jax.Array:
    """float32 logits [B, vocab] at position `last[b]` (int32 [B]) of each row of `x` [B, T, width]; others are not computed."""
    rows = jnp.take_along_axis(x, last[:, None, None], axis=1)
    return output_logits(config, final_norm, output, embed, rows)[:, 0]
