"""Rotary position embedding (Su et al., 2021), half-split layout: channel c is paired with channel c + rotated / 2."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt


def inverse_frequencies(base: float, rotated: int) -> npt.NDArray[np.float32]:
    """float32 [rotated / 2]: the angle that a pair of channels turns by from one position to the next."""
    exponents = np.arange(0, rotated, 2, dtype=np.float64) / rotated
    return (base**-exponents).astype(np.float32)


def rope_angles(positions: jax.Array, inv_freq: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin, float32 [B, T, rotated / 2], for int32 `positions` [B, T] and float32 `inv_freq` [rotated / 2]."""
    angles = positions.astype(jnp.float32)[:, :, None] * inv_freq[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate `x` [B, T, heads, head_dim] by the angles of its positions, in float32; the result has `x`'s dtype.

    Channels beyond those that `cos` has angles for are passed on as they are.
    """
    half = cos.shape[-1]
    wide = x.astype(jnp.float32)
    first, second, rest = jnp.split(wide, (half, 2 * half), axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned if 2 * half == x.shape[-1] else [*turned, rest], axis=-1).astype(x.dtype)
