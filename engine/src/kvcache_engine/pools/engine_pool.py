"""What the engine needs of a pool beyond the core's `DevicePool`: its buffers, its size and how they are laid out."""

from typing import Protocol

import numpy as np
from jax.sharding import NamedSharding

from kvcache_core.contracts.pools import Buffers, DevicePool


class EnginePool(DevicePool, Protocol):
    """One component's pages or states on the device. Buffers are a named tuple of two tuples with one array a layer each, whose
    leading axis counts indices: 0 is the dummy, 1 to `total_pages` are given out."""

    layers: int
    total_pages: int
    dtype: np.dtype
    """The true type of what the arrays hold."""
    unit_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Of one index in a layer's two arrays."""
    sharding: NamedSharding | None

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one index over all layers."""
        ...

    def create(self) -> Buffers:
        """New buffers, all zero."""
        ...
