"""Kimi Delta Attention: a short convolution, then the gated delta rule, over a state that has the same size at any length.

A row's past is one slot of the pool: the convolution's last inputs and one matrix a head, both float32. It is read from one slot
and written to another, so a cached state is never changed by going on from it.
"""

from dataclasses import dataclass
from typing import Literal, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from kvcache_engine.model.delta_rule import gated_delta_rule, unit_length
from kvcache_engine.model.mixer import Memory, Params, Shape, StateMixer
from kvcache_engine.model.norm import rms_norm
from kvcache_engine.model.short_conv import short_conv
from kvcache_engine.model.views import StateView


@final
@dataclass(frozen=True, slots=True)
class DeltaAttention(StateMixer):
    """`heads` of `head_dim` channels for queries, keys and values alike; `kernel` inputs wide convolution over all three. States
    are not split over a mesh."""

    heads: int
    head_dim: int
    kernel: int

    @property
    def component(self) -> Literal["recurrent"]:
        return "recurrent"

    def state_shape(self) -> Shape:
        return self.heads, self.head_dim, self.head_dim

    def shapes(self, width: int) -> dict[str, Shape]:
        channels, rank = self.heads * self.head_dim, self.head_dim
        return {
            "q": (width, channels),
            "k": (width, channels),
            "v": (width, channels),
            "conv": (self.kernel, 3 * channels),
            "decay_down": (width, rank),
            "decay_up": (rank, channels),
            "decay_bias": (channels,),
            "decay_log": (self.heads,),
            "beta": (width, self.heads),
            "out_gate_down": (width, rank),
            "out_gate_up": (rank, channels),
            "out_norm": (self.head_dim,),
            "o": (channels, width),
        }

    def axes(self, mesh: Mesh | None) -> dict[str, int | None]:
        del mesh
        return {}

    def unit_shapes(self, page_size: int) -> tuple[Shape, Shape]:
        del page_size
        return (self.kernel - 1, 3 * self.heads * self.head_dim), self.state_shape()

    def mix(
        self, params: Params, h: jax.Array, memory: Memory, view: StateView, dtype: np.dtype, eps: float
    ) -> tuple[jax.Array, Memory]:
        batch, steps, _ = h.shape

        def by_head(x: jax.Array) -> jax.Array:
            return x.reshape(batch, steps, self.heads, self.head_dim).astype(jnp.float32)

        past, state = (_read(array, view) for array in memory)
        mixed = jnp.concatenate([h @ params["q"], h @ params["k"], h @ params["v"]], axis=-1)
        mixed, past = short_conv(mixed.astype(jnp.float32), params["conv"].astype(jnp.float32), past, view.lengths)
        q, k, v = map(by_head, jnp.split(mixed, 3, axis=-1))
        decay = (h @ params["decay_down"]) @ params["decay_up"]
        decay = jax.nn.softplus(by_head(decay + params["decay_bias"][None, None]))
        log_decay = -jnp.exp(params["decay_log"].astype(jnp.float32))[None, None, :, None] * decay
        beta = jax.nn.sigmoid((h @ params["beta"]).astype(jnp.float32))
        # Padding comes after a row's real tokens; it must leave the state as they left it.
        real = (jnp.arange(steps, dtype=jnp.int32)[None, :] < view.lengths[:, None])[:, :, None]
        out, state = gated_delta_rule(
            unit_length(q) * self.head_dim**-0.5,
            unit_length(k),
            v,
            jnp.where(real[..., None], log_decay, jnp.zeros((), jnp.float32)),
            jnp.where(real, beta, jnp.zeros((), jnp.float32)),
            state,
        )
        gate = by_head((h @ params["out_gate_down"]) @ params["out_gate_up"])
        out = (rms_norm(out, params["out_norm"], eps) * jax.nn.sigmoid(gate)).astype(h.dtype)
        memory = _write(memory[0], past, view, dtype), _write(memory[1], state, view, dtype)
        return out.reshape(batch, steps, self.heads * self.head_dim) @ params["o"], memory


def _read(array: jax.Array, view: StateView) -> jax.Array:
    rows = array.at[view.source].get(mode="promise_in_bounds").astype(jnp.float32)
    fresh = view.fresh.reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.where(fresh, jnp.zeros((), jnp.float32), rows)


def _write(array: jax.Array, rows: jax.Array, view: StateView, dtype: np.dtype) -> jax.Array:
    return array.at[view.target].set(rows.astype(dtype), mode="drop")
