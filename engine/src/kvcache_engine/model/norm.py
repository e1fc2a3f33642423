"""Root-mean-square norms, computed in float32 whatever goes in."""

import jax
import jax.numpy as jnp


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm over the last axis, in float32; the result has `x`'s dtype."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    weight = jnp.expand_dims(weight.astype(jnp.float32), range(x.ndim - 1))
    return (wide * scale * weight).astype(x.dtype)
