"""The pages of sgl-jax's device pool, and how they are copied in and out: the core's `DevicePool` over a pool that is not ours.

sgl-jax keeps one array a layer, [pages of all data-parallel ranks, ...], with a dummy page in front of each rank's. A page is
moved as it is, whatever its inner layout: keys and values fused, packed for a kernel, or latent. It knows nothing about who
owns a page.
"""

from typing import Any, Protocol, final

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from kvcache_core.contracts.pools import SKIP, PageArray
from kvcache_core.contracts.results import Indices

Buffers = list[jax.Array]
Pages = tuple[jax.Array, ...]


class HostPool(Protocol):
    """What is used of sgl-jax's `MHATokenToKVPool` and `MLATokenToKVPool`."""

    kv_buffer: Buffers
    kv_sharding: NamedSharding
    page_size: int
    start_layer: int

    def replace_buffer(self, kv_buffer: Buffers) -> None: ...


@final
class KVPages:
    """The pages 1..`total` of one rank. Holds no buffers: they pass through every call, a list of one array a layer."""

    def __init__(self, pool: HostPool, rank: int, ranks: int) -> None:
        first = pool.kv_buffer[0]
        self._layers = len(pool.kv_buffer)
        self._first_layer = pool.start_layer
        self._rows_of_rank = first.shape[0] // ranks
        self._base = rank * self._rows_of_rank
        self._rows = first.shape[0]
        self._page_shape = tuple(first.shape[1:])
        self._dtype = first.dtype
        self.total = self._rows_of_rank - 1
        mesh, inner = pool.kv_sharding.mesh, tuple(pool.kv_sharding.spec)[1:]
        # Which rank's pages they are says nothing about their content, so captured pages are not split over the data axis.
        spec = PartitionSpec(None, *inner)
        self._host = NamedSharding(mesh, spec, memory_kind="pinned_host")
        placed = pool.kv_sharding
        moved = NamedSharding(mesh, spec)

        def pick(array: jax.Array, indices: jax.Array) -> jax.Array:
            # As integers, in both directions: pages of another device arrive as a sum with zeros, which changes -0.0 and NaNs;
            # XLA's CPU backend scatters small floats by way of float32, which changes NaNs and copies the pool.
            bits = _bits(array).at[indices].get(mode="promise_in_bounds", out_sharding=moved)
            return jax.lax.bitcast_convert_type(bits, array.dtype)

        def put(array: jax.Array, indices: jax.Array, rows: jax.Array) -> jax.Array:
            on_device = jax.device_put(rows, jax.memory.Space.Device)
            bits = _bits(array).at[indices].set(_bits(on_device), mode="drop", out_sharding=placed)
            return jax.lax.bitcast_convert_type(bits, array.dtype)

        def gather(buffers: Buffers, indices: jax.Array) -> Pages:
            return tuple(pick(array, indices) for array in buffers)

        def scatter(buffers: Buffers, indices: jax.Array, pages: Pages) -> Buffers:
            return [put(array, indices, rows) for array, rows in zip(buffers, pages, strict=True)]

        self._gather = jax.jit(gather, out_shardings=self._host)
        self._scatter = jax.jit(scatter, out_shardings=placed, donate_argnums=0)
        last = self._first_layer + self._layers
        parts = (
            b"sgl-jax paged kv 1",
            self._dtype.name.encode(),
            repr(self._page_shape).encode(),
            f"layers {self._first_layer}:{last}".encode(),
            f"page {pool.page_size}".encode(),
        )
        self._identity = b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    @property
    def identity(self) -> bytes:
        """Dtype, inner layout, layer range and page size, each with its length in front. A process holds whole pages."""
        return self._identity

    def host_struct(self) -> Pages:
        """One page as `gather` captures it, without content."""
        array: Any = jax.ShapeDtypeStruct((1, *self._page_shape), self._dtype, sharding=self._host)
        return (array,) * self._layers

    def page_arrays(self) -> tuple[PageArray, ...]:
        """`kv.0`, `kv.1`, ...: the layers counted as in the model."""
        layers = range(self._first_layer, self._first_layer + self._layers)
        return tuple(PageArray(f"kv.{layer}", self._dtype.name, self._page_shape) for layer in layers)

    def gather(self, buffers: Buffers, indices: Indices) -> Pages:
        """Capture the pages `indices` in that order, in pinned host memory, without waiting; further rows are padding.

        Raises ValueError for a page outside 1..total.
        """
        self._check(indices)
        padded = np.full(_bucket(len(indices)), self._base, np.int32)
        padded[: len(indices)] = indices + self._base
        return self._gather(buffers, padded)

    def scatter(self, buffers: Buffers, indices: Indices, pages: Pages) -> Buffers:
        """Write row i of `pages` to page indices[i] unless that is SKIP; donates `buffers`.

        Raises ValueError, before anything is donated, for a page outside 1..total or pages of another pool.
        """
        rows = len(pages[0]) if pages else 0
        alike = all(array.shape == (rows, *self._page_shape) and array.dtype == self._dtype for array in pages)
        if len(pages) != self._layers or not alike or rows < len(indices):
            raise ValueError(f"{len(indices)} indices need as many pages of {self._layers} x {self._dtype}{self._page_shape}")
        written = indices[indices != SKIP]
        self._check(written)
        if not len(written):
            return buffers
        # Out of range is what XLA drops; -1 would be the last page.
        padded = np.full(rows, self._rows, np.int32)
        padded[: len(indices)] = np.where(indices == SKIP, self._rows, indices + self._base)
        return self._scatter(buffers, padded, pages)

    def _check(self, indices: Indices) -> None:
        if len(indices) and (int(indices.min()) < 1 or int(indices.max()) > self.total):
            raise ValueError(f"pages are 1 to {self.total}; got {int(indices.min())} to {int(indices.max())}")


def _bits(array: jax.Array) -> jax.Array:
    """The same bits as unsigned integers."""
    return jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")


def _bucket(n: int) -> int:
    """Page counts go up to powers of two, so that few programs are compiled."""
    return 1 << max(0, n - 1).bit_length()
