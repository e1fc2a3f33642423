"""A short causal convolution over time, one filter a channel, with SiLU after it; its past is the last few inputs."""

import jax
import jax.numpy as jnp


def short_conv(x: jax.Array, filters: jax.Array, past: jax.Array, lengths: jax.Array) -> tuple[jax.Array, jax.Array]:
    """SiLU of the convolution of `x` [B, T, channels] with `filters` [kernel, channels], and the inputs to go on from.

    `past` [B, kernel - 1, channels]: the inputs before `x`, oldest first, zeros before the start of a sequence. `lengths`, int32
    [B]: how many of the T inputs are real; the second result, of `past`'s shape, ends with the last of them.
    """
    kernel, steps = filters.shape[0], x.shape[1]
    inputs = jnp.concatenate([past.astype(x.dtype), x], axis=1)
    summed = sum(
        (inputs[:, j : j + steps] * filters[j][None, None] for j in range(1, kernel)), inputs[:, :steps] * filters[0][None, None]
    )
    last = lengths[:, None] + jnp.arange(kernel - 1, dtype=jnp.int32)[None, :]
    return jax.nn.silu(summed), jnp.take_along_axis(inputs, last[:, :, None], axis=1)
