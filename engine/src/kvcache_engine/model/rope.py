"""Rotary position embedding (Su et al., 2021), half-split layout: channel c is paired with channel c + head_dim / 2."""

import jax
import jax.numpy as jnp


def rope_angles(positions: jax.Array, inv_freq: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin, float32 [B, T, head_dim / 2], for int32 `positions` [B, T] and float32 `inv_freq` [head_dim / 2]."""
    angles = positions.astype(jnp.float32)[:, :, None] * inv_freq[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate `x` [B, T, heads, head_dim] by the angles of its positions, in float32; the result has `x`'s dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
