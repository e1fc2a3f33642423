"""A mixture of experts with sigmoid scores, as DeepSeek-V3, MiMo-V2-Flash and Kimi Linear route.

Every expert computes every token, and what was not chosen counts zero: right for the small models this engine is for, and a
multiple of the work for large ones.
"""

from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from kvcache_engine.errors import UnsupportedModelError
from kvcache_engine.model.mixer import Params, Shape
from kvcache_engine.model.mlp import Mlp, gated


@final
@dataclass(frozen=True, slots=True)
class ExpertMlp(Mlp):
    """`experts` of `size` hidden channels, `chosen` a token; their weights sum to `scale`. `shared_size`: hidden channels of one
    more expert that every token passes, without a weight; 0 for none. Replicated over a mesh."""

    experts: int
    chosen: int
    size: int
    scale: float = 1.0
    shared_size: int = 0

    def __post_init__(self) -> None:
        """Raises UnsupportedModelError when more experts are to be chosen than there are."""
        if not 0 < self.chosen <= self.experts:
            raise UnsupportedModelError(f"{self.chosen} experts a token cannot be chosen from {self.experts}")

    def shapes(self, width: int) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {
            "router": (width, self.experts),
            "router_bias": (self.experts,),
            "experts_in": (self.experts, width, 2 * self.size),
            "experts_out": (self.experts, self.size, width),
        }
        if self.shared_size:
            shapes |= {
                "shared_gate": (width, self.shared_size),
                "shared_up": (width, self.shared_size),
                "shared_down": (self.shared_size, width),
            }
        return shapes

    def axes(self, mesh: Mesh | None) -> dict[str, int | None]:
        del mesh
        return {}

    def apply(self, params: Params, h: jax.Array) -> jax.Array:
        weights = self._weights(params, h).astype(h.dtype)
        hidden = jnp.einsum("btw,ewc->btec", h, params["experts_in"])
        gate, up = jnp.split(hidden, 2, axis=-1)
        # Weighted before the second matrix: it is linear, and the sum over experts then is part of the product.
        out = jnp.einsum("btec,ecw->btw", gated(gate, up) * weights[..., None], params["experts_out"])
        if self.shared_size:
            out = out + gated(h @ params["shared_gate"], h @ params["shared_up"]) @ params["shared_down"]
        return out

    def _weights(self, params: Params, h: jax.Array) -> jax.Array:
        """float32 [B, T, experts], zero for those not chosen. The bias takes part in the choice alone."""
        scores = jax.nn.sigmoid(h.astype(jnp.float32) @ params["router"].astype(jnp.float32))
        _, picked = jax.lax.top_k(scores + params["router_bias"].astype(jnp.float32)[None, None], self.chosen)
        chosen = jnp.sum(jax.nn.one_hot(picked, self.experts, dtype=jnp.float32), axis=-2)
        scores = scores * chosen
        return scores / (jnp.sum(scores, axis=-1, keepdims=True) + 1e-20) * self.scale
