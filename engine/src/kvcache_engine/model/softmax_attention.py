"""Grouped-query attention with rotary positions, over all tokens or over a sliding window."""

from dataclasses import dataclass
from typing import Literal, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_engine.errors import UnsupportedModelError
from kvcache_engine.mesh import heads_are_split, mesh_size
from kvcache_engine.model.attention import attend, read_pages, write_pages
from kvcache_engine.model.mixer import Memory, PageMixer, Params, Shape
from kvcache_engine.model.norm import rms_norm
from kvcache_engine.model.rope import inverse_frequencies, rotate
from kvcache_engine.model.views import PageView


@final
@dataclass(frozen=True, slots=True)
class SoftmaxAttention(PageMixer):
    """`key_dim` and `value_dim` are channels a head; the first `rotated` key channels carry positions.

    `scale`: of the scores. `window`: tokens a query sees, its own included (Gemma 3, MiMo), or None. `qk_norm`: keys and queries
    are RMS-normalised per head before the rotation (Qwen3, Gemma 3). `sinks`: a learned logit a head that takes probability and
    gives no value (gpt-oss, MiMo). `value_scale`: values are multiplied by it before they are cached (MiMo).
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    rope_base: float
    rotated: int
    scale: float
    window: int | None = None
    qk_norm: bool = False
    sinks: bool = False
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        """Raises UnsupportedModelError for sizes that no program here can compute with."""
        if self.kv_heads < 1 or self.heads % self.kv_heads or self.rotated % 2 or not 0 < self.rotated <= self.key_dim:
            raise UnsupportedModelError(
                f"{self.heads} query heads cannot share {self.kv_heads} kv heads of {self.key_dim} channels, {self.rotated} of "
                "them rotated: query heads must be a multiple of kv heads, and rotated channels even"
            )
        if self.window is not None and self.window < 1:
            raise UnsupportedModelError(f"a window of {self.window} tokens: a query sees at least itself")

    @property
    def component(self) -> Literal["full", "swa"]:
        return "full" if self.window is None else "swa"

    def reach(self) -> int | None:
        return self.window

    def inv_freq(self) -> npt.NDArray[np.float32]:
        return inverse_frequencies(self.rope_base, self.rotated)

    def shapes(self, width: int) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {
            "q": (width, self.heads * self.key_dim),
            "k": (width, self.kv_heads * self.key_dim),
            "v": (width, self.kv_heads * self.value_dim),
            "o": (self.heads * self.value_dim, width),
        }
        if self.qk_norm:
            shapes |= {"q_norm": (self.key_dim,), "k_norm": (self.key_dim,)}
        if self.sinks:
            shapes["sinks"] = (self.heads,)
        return shapes

    def axes(self, mesh: Mesh | None) -> dict[str, int | None]:
        # Columns going into heads and rows coming out of them are split alike, so this half needs one sum over devices.
        kv = 1 if heads_are_split(mesh, self.kv_heads) else None
        split = self.heads % mesh_size(mesh) == 0
        return {"q": 1 if split else None, "k": kv, "v": kv, "o": 0 if split else None}

    def unit_shapes(self, page_size: int) -> tuple[Shape, Shape]:
        return (page_size, self.kv_heads, self.key_dim), (page_size, self.kv_heads, self.value_dim)

    def mix(
        self, params: Params, h: jax.Array, memory: Memory, view: PageView, dtype: np.dtype, eps: float
    ) -> tuple[jax.Array, Memory]:
        batch, steps, _ = h.shape
        q = (h @ params["q"]).reshape(batch, steps, self.heads, self.key_dim)
        k = (h @ params["k"]).reshape(batch, steps, self.kv_heads, self.key_dim)
        v = (h @ params["v"]).reshape(batch, steps, self.kv_heads, self.value_dim)
        if self.qk_norm:
            q, k = rms_norm(q, params["q_norm"], eps), rms_norm(k, params["k_norm"], eps)
        q, k = rotate(q, view.cos, view.sin), rotate(k, view.cos, view.sin)
        if self.value_scale != 1.0:
            v = v * jnp.asarray(self.value_scale, v.dtype)
        k_pool, v_pool = write_pages(memory[0], k, view, dtype), write_pages(memory[1], v, view, dtype)
        mixed = attend(
            q,
            read_pages(k_pool, view, dtype),
            read_pages(v_pool, view, dtype),
            view,
            scale=self.scale,
            window=self.window,
            sinks=params["sinks"].astype(jnp.float32) if self.sinks else None,
        )
        return mixed.reshape(batch, steps, self.heads * self.value_dim) @ params["o"], (k_pool, v_pool)
