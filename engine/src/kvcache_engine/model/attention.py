"""Attention over a paged pool: new keys and values are written to their pages, then whole pages are gathered by page table.

It does not know which request a row belongs to, nor whether a page was computed here or came out of a cache.
"""

import jax
import jax.numpy as jnp
import numpy as np


def write_pages(pool: jax.Array, new: jax.Array, pages: jax.Array, slots: jax.Array) -> jax.Array:
    """Write `new` [B, T, kv_heads, head_dim] to (page, slot), int32 [B, T] each; a page out of range drops its token.

    `pool` [pages, page_size, kv_heads, head_dim] is in the stored dtype, `new` in the true one of the same width.
    """
    return pool.at[pages, slots].set(_bits(new, pool.dtype), mode="drop")


def paged_attention(
    q: jax.Array,
    k_pool: jax.Array,
    v_pool: jax.Array,
    page_table: jax.Array,
    positions: jax.Array,
    kv_lengths: jax.Array,
    dtype: np.dtype,
) -> jax.Array:
    """Causal grouped-query attention, softmax in float32.

    Args:
        q: [B, T, heads, head_dim].
        k_pool, v_pool: [pages, page_size, kv_heads, head_dim], stored dtype; `dtype` is the true one.
        page_table: int32 [B, P]; entry i holds the tokens [i * page_size, (i + 1) * page_size) of its row.
        positions: int32 [B, T], absolute; a query sees keys at its own position and before.
        kv_lengths: int32 [B]; keys from there on are not this row's, whatever they hold, NaN included.

    Returns:
        [B, T, heads, head_dim] in q's dtype.
    """
    batch, steps, heads, dim = q.shape
    page_size, kv_heads = k_pool.shape[1], k_pool.shape[2]
    keys = page_table.shape[1] * page_size

    def gather(pool: jax.Array) -> jax.Array:
        pages = pool.at[page_table].get(mode="promise_in_bounds")
        return _values(pages.reshape(batch, keys, kv_heads, dim), dtype).astype(q.dtype)

    k, v = gather(k_pool), gather(v_pool)
    at = jnp.arange(keys, dtype=jnp.int32)
    owned = at[None, :] < kv_lengths[:, None]
    # A probability of zero does not mask a value that is NaN (0 x NaN is NaN), so foreign values are replaced themselves.
    v = jnp.where(owned[:, :, None, None], v, jnp.zeros((), v.dtype))
    grouped = q.reshape(batch, steps, kv_heads, heads // kv_heads, dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k, preferred_element_type=jnp.float32) * dim**-0.5
    visible = owned[:, None, :] & (at[None, None, :] <= positions[:, :, None])
    # The lowest finite number, not minus infinity: a padded row that sees nothing must stay finite.
    scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    mixed = jnp.einsum("bkgts,bskd->btkgd", weights, v)
    return mixed.reshape(batch, steps, heads, dim)


def _bits(values: jax.Array, stored: np.dtype) -> jax.Array:
    return values if values.dtype == stored else jax.lax.bitcast_convert_type(values, stored)


def _values(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    return bits if bits.dtype == dtype else jax.lax.bitcast_convert_type(bits, dtype)
