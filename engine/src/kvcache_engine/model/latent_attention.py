"""Multi-head latent attention (DeepSeek-V2, 2024) without positions, as Kimi Linear uses it.

A token caches one normalised latent and one key part that all heads share. The up-projections of keys and values are applied to
queries and results instead ("absorbed"), so no key is ever expanded per head: heads attend to the latents themselves.
"""

from dataclasses import dataclass
from typing import Literal, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_engine.model.attention import attend, read_pages, write_pages
from kvcache_engine.model.mixer import Memory, PageMixer, Params, Shape
from kvcache_engine.model.norm import rms_norm
from kvcache_engine.model.views import PageView

_LATENT_EPS = 1e-6
"""Of the latent's norm, whatever the model's other norms have."""


@final
@dataclass(frozen=True, slots=True)
class LatentAttention(PageMixer):
    """`rank` channels of latent and `shared` channels of key a token are cached; each head has `key_dim` + `shared` key channels
    and `value_dim` value channels. A latent belongs to all heads, so nothing is split over a mesh."""

    heads: int
    rank: int
    shared: int
    key_dim: int
    value_dim: int

    @property
    def component(self) -> Literal["full"]:
        return "full"

    def reach(self) -> int | None:
        return None

    def inv_freq(self) -> npt.NDArray[np.float32]:
        return np.zeros(0, np.float32)

    def shapes(self, width: int) -> dict[str, Shape]:
        return {
            "q": (width, self.heads * (self.key_dim + self.shared)),
            "kv_down": (width, self.rank + self.shared),
            "kv_norm": (self.rank,),
            "kv_up": (self.rank, self.heads * (self.key_dim + self.value_dim)),
            "o": (self.heads * self.value_dim, width),
        }

    def axes(self, mesh: Mesh | None) -> dict[str, int | None]:
        del mesh
        return {}

    def unit_shapes(self, page_size: int) -> tuple[Shape, Shape]:
        return (page_size, 1, self.rank), (page_size, 1, self.shared)

    def mix(
        self, params: Params, h: jax.Array, memory: Memory, view: PageView, dtype: np.dtype, eps: float
    ) -> tuple[jax.Array, Memory]:
        del eps
        batch, steps, _ = h.shape
        q = (h @ params["q"]).reshape(batch, steps, self.heads, self.key_dim + self.shared)
        latent, shared = jnp.split(h @ params["kv_down"], (self.rank,), axis=-1)
        latent = rms_norm(latent, params["kv_norm"], _LATENT_EPS)
        latents = write_pages(memory[0], latent[:, :, None], view, dtype)
        shares = write_pages(memory[1], shared[:, :, None], view, dtype)
        up = params["kv_up"].reshape(self.rank, self.heads, self.key_dim + self.value_dim)
        key_up, value_up = jnp.split(up, (self.key_dim,), axis=-1)
        own, common = jnp.split(q, (self.key_dim,), axis=-1)
        values = read_pages(latents, view, dtype)
        mixed = attend(
            jnp.concatenate([jnp.einsum("bthk,rhk->bthr", own, key_up), common], axis=-1),
            jnp.concatenate([values, read_pages(shares, view, dtype)], axis=-1),
            values,
            view,
            scale=(self.key_dim + self.shared) ** -0.5,
        )
        out = jnp.einsum("bthr,rhv->bthv", mixed, value_up)
        return out.reshape(batch, steps, self.heads * self.value_dim) @ params["o"], (latents, shares)
