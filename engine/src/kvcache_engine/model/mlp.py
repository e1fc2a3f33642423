"""The half of a layer that looks at one token at a time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import jax
from jax.sharding import Mesh

from kvcache_engine.mesh import mesh_size
from kvcache_engine.model.mixer import Params, Shape

Activation = Literal["silu", "gelu_tanh"]


class Mlp(ABC):
    """What all of them have. Implementations are frozen and hashable: layers with equal ones share their programs."""

    @abstractmethod
    def shapes(self, width: int) -> dict[str, Shape]:
        """Its parameters by field name, as `x @ matrix` applies them; `width` is that of the residual stream."""

    @abstractmethod
    def axes(self, mesh: Mesh | None) -> dict[str, int | None]:
        """The axis of each parameter that is split over the mesh; those not named, and None, are replicated."""

    @abstractmethod
    def apply(self, params: Params, h: jax.Array) -> jax.Array:
        """[B, T, width] to [B, T, width], to be added to the residual stream."""


@final
@dataclass(frozen=True, slots=True)
class DenseMlp(Mlp):
    """`size` hidden channels, gated."""

    size: int
    activation: Activation = "silu"

    def shapes(self, width: int) -> dict[str, Shape]:
        return {"gate": (width, self.size), "up": (width, self.size), "down": (self.size, width)}

    def axes(self, mesh: Mesh | None) -> dict[str, int | None]:
        # Columns going in and rows coming out are split alike, so this half needs one sum over devices.
        split = self.size % mesh_size(mesh) == 0
        return {"gate": 1 if split else None, "up": 1 if split else None, "down": 0 if split else None}

    def apply(self, params: Params, h: jax.Array) -> jax.Array:
        return gated(h @ params["gate"], h @ params["up"], self.activation) @ params["down"]


def gated(gate: jax.Array, up: jax.Array, activation: Activation = "silu") -> jax.Array:
    """`up` times the activation of `gate`."""
    return (jax.nn.silu(gate) if activation == "silu" else jax.nn.gelu(gate, approximate=True)) * up
