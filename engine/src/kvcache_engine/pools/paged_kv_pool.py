"""The key and value pages of one attention component on the device, and how they are copied in and out.

It knows nothing about tokens, requests or ownership. Moving whole pages follows what was measured: one program over a list of
layers that reads or writes pinned host memory itself, page counts rounded up to powers of two, and types that XLA's CPU backend
scatters slowly stored as plain integers.
"""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from kvcache_core.contracts.pools import SKIP, PageArray
from kvcache_engine.buckets import bucket
from kvcache_engine.mesh import heads_are_split, split_axis

_STORED_AS = {
    "float32": "float32",
    "float16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    # A scatter into a bfloat16 or float8 array copies the whole pool on the CPU; the same bits as integers do not.
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
}
_LAYOUT = b"page,slot,head,channel; all k then all v by layer"


class Buffers(NamedTuple):
    """One array a layer, [1 + total pages, page_size, kv_heads, head_dim], in the stored dtype. Page 0 is the dummy."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


class Pages(NamedTuple):
    """Captured pages: one array a layer, [n, page_size, kv_heads, head_dim]. Rows beyond those asked for are padding."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


def _gather(buffers: Buffers, indices: jax.Array) -> Pages:
    indices = _weighed(indices)

    def pick(array: jax.Array) -> jax.Array:
        return array.at[indices].get(mode="promise_in_bounds")

    return Pages(tuple(map(pick, buffers.k)), tuple(map(pick, buffers.v)))


def _scatter(buffers: Buffers, indices: jax.Array, pages: Pages) -> Buffers:
    indices = _weighed(indices)

    def put(array: jax.Array, rows: jax.Array) -> jax.Array:
        # A copy of its own on an accelerator; XLA's CPU backend reads the host array in place.
        return array.at[indices].set(jax.device_put(rows, jax.memory.Space.Device), mode="drop")

    return Buffers(tuple(map(put, buffers.k, pages.k)), tuple(map(put, buffers.v, pages.v)))


def _weighed(indices: jax.Array) -> jax.Array:
    """`indices` unchanged, after more than 1,000 operations that XLA cannot leave out.

    The CPU client runs programs of fewer operations in the thread that calls them, and it does not count copies: without this,
    the engine's thread would move the pages itself (64 pages of 720 KiB: 1.5 ms instead of 0.4 ms for a scatter).
    """
    never_negative = jnp.sum(jnp.arange(1024, dtype=jnp.int32) & indices[0])
    return indices + jnp.minimum(never_negative, 0)


@final
class PagedKVPool:
    """Implements the core's `DevicePool` for one component. Holds no buffers: they pass through every call.

    `dtype` is the true dtype of keys and values; `stored_dtype` is that of the arrays (the same bits). With a mesh, the kv head
    axis is split over `tensor` when it divides, and replicated when the axis is a multiple of the heads. Captured pages lie in
    memory of kind pinned_host, split in the same way.
    """

    def __init__(
        self,
        *,
        layers: int,
        total_pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: npt.DTypeLike = np.float32,
        mesh: Mesh | None = None,
        first_layer: int = 0,
    ) -> None:
        """Raises:
        ValueError: a size is not positive, or the dtype is not one a pool stores.
        ShardingError: the kv heads cannot be laid out on the mesh.
        """
        if min(layers, total_pages, page_size, kv_heads, head_dim) < 1:
            raise ValueError("layers, total_pages, page_size, kv_heads and head_dim must be positive")
        self.dtype = jnp.dtype(dtype)
        if self.dtype.name not in _STORED_AS:
            raise ValueError(f"a pool cannot store {self.dtype.name}; it stores {', '.join(_STORED_AS)}")
        self.stored_dtype = jnp.dtype(_STORED_AS[self.dtype.name])
        self.layers = layers
        self.first_layer = first_layer
        self.total_pages = total_pages
        self.page_size = page_size
        self.page_shape = (page_size, kv_heads, head_dim)
        self.heads_split = heads_are_split(mesh, kv_heads)
        self.sharding = split_axis(mesh, 2 if self.heads_split else None)
        placed: Sharding = self.sharding or SingleDeviceSharding(jax.devices()[0])
        self.host_sharding = placed.with_memory_kind("pinned_host")
        self._gather = jax.jit(_gather, out_shardings=self.host_sharding)
        self._scatter = jax.jit(_scatter, out_shardings=placed, donate_argnums=0)
        first, last = first_layer, first_layer + layers
        parts = (
            b"kvcache-engine paged kv 1",
            self.dtype.name.encode(),
            _LAYOUT,
            f"layers {first}:{last}".encode(),
            f"page {page_size}x{kv_heads}x{head_dim}".encode(),
            f"heads 0:{kv_heads} of {kv_heads}".encode(),
        )
        self._identity = b"".join(len(part).to_bytes(4, "little") + part for part in parts)

    @property
    def identity(self) -> bytes:
        """True dtype, layout, layer range, page shape and head range, each with its length in front.

        One process holds all heads of the mesh, and gathered pages are whole: how they are split over devices is not part of it.
        """
        return self._identity

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all layers, keys and values, on all devices together (replicas counted once)."""
        return 2 * self.layers * int(np.prod(self.page_shape)) * self.dtype.itemsize

    def create(self) -> Buffers:
        """New buffers, all zero: the dummy page must be finite, and so must what attention gathers and masks."""
        shape = (1 + self.total_pages, *self.page_shape)
        zeros = jax.jit(lambda: jnp.zeros(shape, self.stored_dtype), out_shardings=self.sharding)
        return Buffers(tuple(zeros() for _ in range(self.layers)), tuple(zeros() for _ in range(self.layers)))

    def host_struct(self) -> Pages:
        """One page as `Pages` of `jax.ShapeDtypeStruct`s, leading axis 1, with the shardings that captured pages have."""
        array: Any = jax.ShapeDtypeStruct((1, *self.page_shape), self.stored_dtype, sharding=self.host_sharding)
        return Pages((array,) * self.layers, (array,) * self.layers)

    def page_arrays(self) -> tuple[PageArray, ...]:
        """`k.0`, `k.1`, ... then `v.0`, ...: the layers counted as in the model, in the true dtype."""
        layers = range(self.first_layer, self.first_layer + self.layers)
        return tuple(PageArray(f"{part}.{layer}", self.dtype.name, self.page_shape) for part in "kv" for layer in layers)

    def gather(self, buffers: Buffers, indices: npt.NDArray[np.int32]) -> Pages:
        """Capture the pages `indices` (1-D int32) in that order, in pinned host memory. Returns at once: the arrays are futures,
        and `buffers` may be donated right away. There are at least as many rows as indices; the rest is padding.

        Raises ValueError for a page outside 1..total.
        """
        self._check(indices)
        padded = np.zeros(bucket(len(indices)), np.int32)
        padded[: len(indices)] = indices
        return self._gather(buffers, padded)

    def scatter(self, buffers: Buffers, indices: npt.NDArray[np.int32], pages: Pages) -> Buffers:
        """Write row i of `pages` to page indices[i], unless that is SKIP; further rows are ignored. Donates `buffers` and returns
        at once. `pages` are in pinned host memory as `gather` gives them; arrays in device memory are taken too. Each number of
        rows is a program of its own, so give batches as they were captured, with SKIP, instead of slices.

        Raises ValueError, before anything is donated, for a page outside 1..total, fewer rows than indices, other shapes or
        another dtype than the pool's.
        """
        n = len(indices)
        rows = len(pages.k[0]) if pages.k else 0
        for array in (*pages.k, *pages.v):
            if array.shape != (rows, *self.page_shape) or array.dtype != self.stored_dtype:
                raise ValueError(f"pages of {array.dtype}{array.shape} do not fit a pool of {self.stored_dtype}{self.page_shape}")
        if len(pages.k) != self.layers or len(pages.v) != self.layers or rows < n:
            raise ValueError(f"{n} indices need as many pages of {self.layers} layers; there are {rows} of {len(pages.k)}")
        written = indices[indices != SKIP]
        self._check(written)
        if not len(written):
            return buffers
        # Out of range is what XLA drops; -1 would be the last page.
        padded = np.full(rows, 1 + self.total_pages, np.int32)
        padded[:n] = np.where(indices == SKIP, 1 + self.total_pages, indices)
        return self._scatter(buffers, padded, pages)

    def _check(self, indices: npt.NDArray[np.int32]) -> None:
        if len(indices) and (int(indices.min()) < 1 or int(indices.max()) > self.total_pages):
            raise ValueError(f"pages are 1 to {self.total_pages}; got {int(indices.min())} to {int(indices.max())}")
