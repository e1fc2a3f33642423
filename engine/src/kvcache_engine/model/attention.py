"""Attention over a paged pool: new keys and values are written to their pages, then whole pages are gathered by page table.

It does not know which request a row belongs to, nor whether a page was computed here or came out of a cache.
"""

import jax
import jax.numpy as jnp
import numpy as np

from kvcache_engine.model.views import PageView


def write_pages(pool: jax.Array, new: jax.Array, view: PageView, dtype: np.dtype) -> jax.Array:
    """Write `new` [B, T, kv_heads, channels] as `dtype` to the view's pages and slots; a page out of range drops its token.

    `pool` [pages, page_size, kv_heads, channels] is in the stored type, which has `dtype`'s width.
    """
    return pool.at[view.pages, view.slots].set(_bits(new.astype(dtype), pool.dtype), mode="drop")


def read_pages(pool: jax.Array, view: PageView, dtype: np.dtype) -> jax.Array:
    """The pages of each row's table, token after token: [B, P * page_size, kv_heads, channels] in `dtype`, the true type."""
    pages = pool.at[view.page_table].get(mode="promise_in_bounds")
    rows, width, page_size, *unit = pages.shape
    return _values(pages.reshape(rows, width * page_size, *unit), dtype)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    view: PageView,
    *,
    scale: float,
    window: int | None = None,
    sinks: jax.Array | None = None,
) -> jax.Array:
    """Causal grouped-query attention, softmax in float32.

    Args:
        q: [B, T, heads, channels].
        k, v: [B, S, kv_heads, channels of each]: the tokens from `view.first` on. What lies at or beyond `view.kv_lengths`, or
            before every query's window, is not this row's, whatever it holds, NaN included.
        scale: of the scores.
        window: a query sees its own position and the window - 1 before it; None: all before it.
        sinks: float32 [heads], each one more logit of its head that takes probability and gives no value.

    Returns:
        [B, T, heads, value channels] in q's dtype.
    """
    batch, steps, heads, dim = q.shape
    kv_heads = k.shape[2]
    at = view.first[:, None] + jnp.arange(k.shape[1], dtype=jnp.int32)[None, :]
    owned = at < view.kv_lengths[:, None]
    visible = at[:, None, :] <= view.positions[:, :, None]
    if window is not None:
        owned &= at > view.positions[:, :1] - window
        visible &= at[:, None, :] > view.positions[:, :, None] - window
    visible &= owned[:, None, :]
    k = k.astype(q.dtype)
    # A probability of zero does not mask a value that is NaN (0 x NaN is NaN), so foreign values are replaced themselves.
    v = jnp.where(owned[:, :, None, None], v.astype(q.dtype), jnp.zeros((), q.dtype))
    grouped = q.reshape(batch, steps, kv_heads, heads // kv_heads, dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k, preferred_element_type=jnp.float32) * scale
    # The lowest finite number, not minus infinity: a padded row that sees nothing must stay finite.
    scores = jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min)
    if sinks is None:
        weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    else:
        weights = _softmax_with_sinks(scores, sinks).astype(q.dtype)
    mixed = jnp.einsum("bkgts,bskd->btkgd", weights, v)
    return mixed.reshape(batch, steps, heads, v.shape[-1])


def _softmax_with_sinks(scores: jax.Array, sinks: jax.Array) -> jax.Array:
    """`scores` [B, kv_heads, group, T, S]; the sink of each head counts in the denominator only."""
    _, kv_heads, group, _, _ = scores.shape
    sink = jnp.broadcast_to(sinks.reshape(1, kv_heads, group, 1, 1), (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, sink], axis=-1), axis=-1)[..., :-1]


def _bits(values: jax.Array, stored: np.dtype) -> jax.Array:
    return values if values.dtype == stored else jax.lax.bitcast_convert_type(values, stored)


def _values(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    return bits if bits.dtype == dtype else jax.lax.bitcast_convert_type(bits, dtype)
