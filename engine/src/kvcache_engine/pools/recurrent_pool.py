"""The states of one recurrent component on the device, and how they are copied in and out.

An index is a slot: what all recurrent layers know of one sequence at one position. It knows neither sequences nor positions, nor
which slots are running ones and which are snapshots.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from kvcache_core.contracts.pools import PageArray
from kvcache_engine.mesh import split_axis
from kvcache_engine.pools.identity import framed, layers_text
from kvcache_engine.pools.row_copies import check_numbers, gathered_rows, pick_rows, put_rows, scattered_rows


class States(NamedTuple):
    """One array a layer, float32. The pool's: [1 + slots, *shape], slot 0 the dummy. Captured: [n, *shape], and rows beyond those
    asked for are padding."""

    conv: tuple[jax.Array, ...]
    """The last inputs of the convolution, oldest first: (kernel - 1, channels)."""
    recurrent: tuple[jax.Array, ...]
    """(heads, key channels, value channels)."""


def _gather(buffers: States, indices: jax.Array) -> States:
    return States(pick_rows(buffers.conv, indices), pick_rows(buffers.recurrent, indices))


def _scatter(buffers: States, indices: jax.Array, states: States) -> States:
    return States(put_rows(buffers.conv, indices, states.conv), put_rows(buffers.recurrent, indices, states.recurrent))


@final
class RecurrentPool:
    """Implements the core's `DevicePool` for `total_pages` slots of one component. Holds no buffers: they pass through the calls.

    States are float32 whatever the model computes in: a recurrence adds up its rounding. Every device of a mesh has all of them.
    Captured states lie in memory of kind pinned_host.
    """

    def __init__(
        self,
        *,
        layer_numbers: Sequence[int],
        total_pages: int,
        conv_shape: tuple[int, ...],
        state_shape: tuple[int, ...],
        mesh: Mesh | None = None,
    ) -> None:
        """`layer_numbers`: which layers of the model these are. Raises ValueError when a size is not positive."""
        if min(len(layer_numbers), total_pages, *conv_shape, *state_shape) < 1:
            raise ValueError("layers, total_pages and the sizes of a state must be positive")
        self.dtype: np.dtype = np.dtype(np.float32)
        self.layers = len(layer_numbers)
        self.layer_numbers = tuple(layer_numbers)
        self.total_pages = total_pages
        self.unit_shapes = (tuple(conv_shape), tuple(state_shape))
        self.sharding = split_axis(mesh, None)
        placed: Sharding = self.sharding or SingleDeviceSharding(jax.devices()[0])
        self.host_sharding = placed.with_memory_kind("pinned_host")
        self._gather = jax.jit(_gather, out_shardings=self.host_sharding)
        self._scatter = jax.jit(_scatter, out_shardings=placed, donate_argnums=0)
        self._identity = framed(
            "kvcache-engine recurrent state 1",
            self.dtype.name,
            "conv: input,channel; state: head,key,value; all conv then all state by layer",
            layers_text(self.layer_numbers),
            *("x".join(map(str, shape)) for shape in self.unit_shapes),
        )

    @property
    def identity(self) -> bytes:
        """Dtype, layout, layers and shapes, each with its length in front."""
        return self._identity

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one slot over all layers (replicas counted once)."""
        return self.layers * sum(int(np.prod(shape)) for shape in self.unit_shapes) * self.dtype.itemsize

    def create(self) -> States:
        """New buffers, all zero."""

        def arrays(shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
            whole = (1 + self.total_pages, *shape)
            zeros = jax.jit(lambda: jnp.zeros(whole, jnp.float32), out_shardings=self.sharding)
            return tuple(zeros() for _ in range(self.layers))

        return States(*map(arrays, self.unit_shapes))

    def host_struct(self) -> States:
        """One slot as `States` of `jax.ShapeDtypeStruct`s, leading axis 1, with the shardings that captured states have."""

        def arrays(shape: tuple[int, ...]) -> Any:
            return (jax.ShapeDtypeStruct((1, *shape), jnp.float32, sharding=self.host_sharding),) * self.layers

        return States(*map(arrays, self.unit_shapes))

    def page_arrays(self) -> tuple[PageArray, ...]:
        """`conv.0`, `conv.1`, ... then `recurrent.0`, ...: the layers counted as in the model."""
        parts = zip(States._fields, self.unit_shapes, strict=True)
        return tuple(PageArray(f"{part}.{i}", self.dtype.name, shape) for part, shape in parts for i in self.layer_numbers)

    def gather(self, buffers: States, indices: npt.NDArray[np.int32]) -> States:
        """Capture the slots `indices` (1-D int32) in that order, in pinned host memory. Returns at once: the arrays are futures,
        and `buffers` may be donated right away. There are at least as many rows as indices; the rest is padding.

        Raises ValueError for a slot outside 1..total.
        """
        check_numbers(indices, self.total_pages)
        return self._gather(buffers, gathered_rows(indices))

    def scatter(self, buffers: States, indices: npt.NDArray[np.int32], pages: States) -> States:
        """Write row i of `pages` to slot indices[i], unless that is SKIP; further rows are ignored. Donates `buffers` and returns
        at once.

        Raises ValueError, before anything is donated, for a slot outside 1..total, fewer rows than indices, other shapes or
        another dtype than the pool's.
        """
        n = len(indices)
        rows = len(pages.conv[0]) if pages.conv else 0
        for arrays, shape in zip(pages, self.unit_shapes, strict=True):
            for array in arrays:
                if array.shape != (rows, *shape) or array.dtype != self.dtype:
                    raise ValueError(f"states of {array.dtype}{array.shape} do not fit a pool of {self.dtype}{shape}")
        if len(pages.conv) != self.layers or len(pages.recurrent) != self.layers or rows < n:
            raise ValueError(f"{n} indices need as many states of {self.layers} layers; there are {rows} of {len(pages.conv)}")
        written = scattered_rows(indices, rows, self.total_pages)
        return buffers if written is None else self._scatter(buffers, written, pages)
