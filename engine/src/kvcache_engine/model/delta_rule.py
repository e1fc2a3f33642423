"""The gated delta rule with a decay of its own for each key channel: the recurrence of Kimi Delta Attention (2025).

With state S [K, V] per head and a step's q, k [K], v [V], log decay g [K] and rate beta:
S <- exp(g) S by rows;  S <- S + k (beta (v - S^T k))^T;  output S^T q. It reads the state after the update.
"""

import jax
import jax.numpy as jnp


def unit_length(x: jax.Array) -> jax.Array:
    """`x` over its length along the last axis, which 1e-6 under the root keeps from being zero."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def gated_delta_rule(
    q: jax.Array, k: jax.Array, v: jax.Array, log_decay: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Run T steps one after the other, in float32 throughout; a step with beta 0 and log decay 0 leaves the state alone.

    Args:
        q, k, log_decay: [B, T, heads, K]; q scaled and both normalised by the caller.
        v: [B, T, heads, V].
        beta: [B, T, heads].
        state: [B, heads, K, V], the one before the first step.

    Returns:
        the outputs [B, T, heads, V] and the state after the last step.
    """

    def step(state: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, decay, beta = now
        state = state * decay[..., None]
        error = (v - jnp.einsum("bhk,bhkv->bhv", k, state)) * beta[..., None]
        state = state + k[..., None] * error[..., None, :]
        return state, jnp.einsum("bhk,bhkv->bhv", q, state)

    steps = tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, jnp.exp(log_decay), beta))
    state, out = jax.lax.scan(step, state, steps)
    return jnp.moveaxis(out, 0, 1), state
