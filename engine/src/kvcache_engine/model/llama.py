"""The arithmetic of Llama-family decoders (Llama, SmolLM2, Qwen3), one function for each program the runner compiles.

A layer is a program of its own, compiled once for all layers: compile time does not grow with depth, and on the CPU, where a
call costs tens of microseconds, running it 30 times costs nothing measurable. Weights are always arguments, never constants.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kvcache_engine.model.attention import paged_attention, write_pages
from kvcache_engine.model.config import ModelConfig
from kvcache_engine.model.params import LayerParams
from kvcache_engine.model.rope import rope_angles, rotate


class Context(NamedTuple):
    """What every layer of one forward shares. int32 unless said otherwise; B rows, T new tokens, P pages a row.

    `cos`, `sin`: float32 [B, T, head_dim / 2]. `positions`, `pages`, `slots`: [B, T]; `pages` is out of range where a token is
    padding. `kv_lengths`: [B], tokens a row has after this forward. `page_table`: [B, P].
    """

    cos: jax.Array
    sin: jax.Array
    positions: jax.Array
    pages: jax.Array
    slots: jax.Array
    kv_lengths: jax.Array
    page_table: jax.Array


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, in float32; the result has `x`'s dtype."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    weight = jnp.expand_dims(weight.astype(jnp.float32), range(x.ndim - 1))
    return (wide * scale * weight).astype(x.dtype)


def embed_tokens(
    embed: jax.Array, inv_freq: jax.Array, ids: jax.Array, positions: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The residual stream [B, T, width] of `ids` [B, T], and the rotation (cos, sin) of their positions."""
    return embed.at[ids].get(mode="promise_in_bounds"), *rope_angles(positions, inv_freq)


def decoder_layer(
    config: ModelConfig,
    kv_dtype: np.dtype,
    params: LayerParams,
    x: jax.Array,
    k_pool: jax.Array,
    v_pool: jax.Array,
    context: Context,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One layer: `x` [B, T, width] and the layer's pools go in, their successors come out. The caller donates all three."""
    batch, steps, _ = x.shape
    dim = config.head_dim
    h = rms_norm(x, params.attn_norm, config.norm_eps)
    q = (h @ params.q).reshape(batch, steps, config.heads, dim)
    k = (h @ params.k).reshape(batch, steps, config.kv_heads, dim)
    v = (h @ params.v).reshape(batch, steps, config.kv_heads, dim)
    if params.q_norm is not None and params.k_norm is not None:
        q, k = rms_norm(q, params.q_norm, config.norm_eps), rms_norm(k, params.k_norm, config.norm_eps)
    q, k = rotate(q, context.cos, context.sin), rotate(k, context.cos, context.sin)
    k_pool = write_pages(k_pool, k.astype(kv_dtype), context.pages, context.slots)
    v_pool = write_pages(v_pool, v.astype(kv_dtype), context.pages, context.slots)
    mixed = paged_attention(q, k_pool, v_pool, context.page_table, context.positions, context.kv_lengths, kv_dtype)
    x = x + mixed.reshape(batch, steps, config.heads * dim) @ params.o
    h = rms_norm(x, params.mlp_norm, config.norm_eps)
    x = x + (jax.nn.silu(h @ params.gate) * (h @ params.up)) @ params.down
    return x, k_pool, v_pool


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
