"""The half of a layer that lets tokens see each other: attention over pages, or a recurrence over states.

A mixer is sizes and arithmetic, no arrays: parameters, memory and positions pass through every call. It does not know which
layer it stands in.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_engine.model.views import PageView, StateView

Shape = tuple[int, ...]
Params = Mapping[str, jax.Array]
Memory = tuple[jax.Array, jax.Array]
"""The two arrays that one layer keeps in its component's pool, indexed by page or slot."""
View = TypeVar("View", PageView, StateView)


class Mixer(ABC, Generic[View]):
    """What all mixers have. Implementations are frozen and hashable: layers with equal ones share their programs."""

    @property
    @abstractmethod
    def component(self) -> str:
        """The component whose pool holds its memory."""

    @abstractmethod
    def shapes(self, width: int) -> dict[str, Shape]:
        """Its parameters by field name, matrices [in, out]; `width` is that of the residual stream."""

    @abstractmethod
    def axes(self, mesh: Mesh | None) -> dict[str, int | None]:
        """The axis of each parameter that is split over the mesh; those not named, and None, are replicated.

        Raises ShardingError when its heads cannot be laid out.
        """

    @abstractmethod
    def unit_shapes(self, page_size: int) -> tuple[Shape, Shape]:
        """Shapes of its two arrays for one index of the pool: one page of `page_size` tokens, or one state."""

    @abstractmethod
    def mix(
        self, params: Params, h: jax.Array, memory: Memory, view: View, dtype: np.dtype, eps: float
    ) -> tuple[jax.Array, Memory]:
        """`h` [B, T, width] is the normalised residual stream; what comes back is to be added to it.

        `memory` is in its pool's stored type, `dtype` is the true one; the successor replaces it, and the caller donates it.
        `eps` is the norms'.
        """


class PageMixer(Mixer[PageView]):
    """Attention over pages."""

    @abstractmethod
    def reach(self) -> int | None:
        """How many keys a query sees, its own included; None for all."""

    @abstractmethod
    def inv_freq(self) -> npt.NDArray[np.float32]:
        """float32 [rotated / 2] for `rope_angles`; empty where nothing is rotated."""


class StateMixer(Mixer[StateView]):
    """A recurrence over states."""

    @abstractmethod
    def state_shape(self) -> Shape:
        """Of one layer's state: (heads, key channels, value channels)."""
