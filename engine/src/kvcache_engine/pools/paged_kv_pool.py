"""The key and value pages of one attention component on the device, and how they are copied in and out.

It knows nothing about tokens, requests or ownership. How pages move is in `row_copies`; types that XLA's CPU backend scatters
slowly are stored as plain integers. Latent attention keeps its pages here too: its latents are the keys, and the key part that
heads share are the values.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from kvcache_core.contracts.pools import PageArray
from kvcache_engine.mesh import heads_are_split, split_axis
from kvcache_engine.pools.identity import framed, layers_text
from kvcache_engine.pools.row_copies import check_numbers, gathered_rows, pick_rows, put_rows, scattered_rows

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
_LAYOUT = "page,slot,head,channel; all k then all v by layer"


class Buffers(NamedTuple):
    """One array a layer, [1 + total pages, page_size, kv_heads, channels], in the stored dtype. Page 0 is the dummy."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


class Pages(NamedTuple):
    """Captured pages: one array a layer, [n, page_size, kv_heads, channels]. Rows beyond those asked for are padding."""

    k: tuple[jax.Array, ...]
    v: tuple[jax.Array, ...]


def _gather(buffers: Buffers, indices: jax.Array) -> Pages:
    return Pages(pick_rows(buffers.k, indices), pick_rows(buffers.v, indices))


def _scatter(buffers: Buffers, indices: jax.Array, pages: Pages) -> Buffers:
    return Buffers(put_rows(buffers.k, indices, pages.k), put_rows(buffers.v, indices, pages.v))


@final
class PagedKVPool:
    """Implements the core's `DevicePool` for one component. Holds no buffers: they pass through every call.

    `dtype` is the true dtype of keys and values; `stored_dtype` is that of the arrays (the same bits). With a mesh, the kv head
    axis is split over `tensor` when it divides, and replicated when the axis is a multiple of the heads. Captured pages lie in
    memory of kind pinned_host, split in the same way. `unit_shapes` are those of a page's keys and of its values.
    """

    def __init__(
        self,
        *,
        layers: int,
        total_pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        dtype: npt.DTypeLike = np.float32,
        mesh: Mesh | None = None,
        first_layer: int = 0,
        layer_numbers: Sequence[int] | None = None,
    ) -> None:
        """`head_dim` and `value_dim` are channels of a key and of a value, the same by default. `layer_numbers`: which layers of
        the model these are, `layers` of them; by default they follow each other from `first_layer` on.

        Raises:
        ValueError: a size is not positive, or the dtype is not one a pool stores.
        ShardingError: the kv heads cannot be laid out on the mesh.
        """
        value_dim = head_dim if value_dim is None else value_dim
        if min(layers, total_pages, page_size, kv_heads, head_dim, value_dim) < 1:
            raise ValueError("layers, total_pages, page_size, kv_heads and head_dim must be positive")
        numbers = range(first_layer, first_layer + layers) if layer_numbers is None else layer_numbers
        if len(numbers) != layers:
            raise ValueError(f"{layers} layers need as many numbers, not {len(numbers)}")
        self.dtype = jnp.dtype(dtype)
        if self.dtype.name not in _STORED_AS:
            raise ValueError(f"a pool cannot store {self.dtype.name}; it stores {', '.join(_STORED_AS)}")
        self.stored_dtype = jnp.dtype(_STORED_AS[self.dtype.name])
        self.layers = layers
        self.layer_numbers = tuple(numbers)
        self.total_pages = total_pages
        self.page_size = page_size
        self.page_shape = (page_size, kv_heads, head_dim)
        self.unit_shapes = (self.page_shape, (page_size, kv_heads, value_dim))
        self.heads_split = heads_are_split(mesh, kv_heads)
        self.sharding = split_axis(mesh, 2 if self.heads_split else None)
        placed: Sharding = self.sharding or SingleDeviceSharding(jax.devices()[0])
        self.host_sharding = placed.with_memory_kind("pinned_host")
        self._gather = jax.jit(_gather, out_shardings=self.host_sharding)
        self._scatter = jax.jit(_scatter, out_shardings=placed, donate_argnums=0)
        page = f"page {page_size}x{kv_heads}x{head_dim}" + ("" if value_dim == head_dim else f"+{value_dim}")
        self._identity = framed(
            "kvcache-engine paged kv 1",
            self.dtype.name,
            _LAYOUT,
            layers_text(self.layer_numbers),
            page,
            f"heads 0:{kv_heads} of {kv_heads}",
        )

    @property
    def identity(self) -> bytes:
        """True dtype, layout, layer range, page shape and head range, each with its length in front.

        One process holds all heads of the mesh, and gathered pages are whole: how they are split over devices is not part of it.
        """
        return self._identity

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all layers, keys and values, on all devices together (replicas counted once)."""
        return self.layers * sum(int(np.prod(shape)) for shape in self.unit_shapes) * self.dtype.itemsize

    def create(self) -> Buffers:
        """New buffers, all zero: the dummy page must be finite, and so must what attention gathers and masks."""

        def arrays(shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
            whole = (1 + self.total_pages, *shape)
            zeros = jax.jit(lambda: jnp.zeros(whole, self.stored_dtype), out_shardings=self.sharding)
            return tuple(zeros() for _ in range(self.layers))

        return Buffers(*map(arrays, self.unit_shapes))

    def host_struct(self) -> Pages:
        """One page as `Pages` of `jax.ShapeDtypeStruct`s, leading axis 1, with the shardings that captured pages have."""

        def arrays(shape: tuple[int, ...]) -> Any:
            return (jax.ShapeDtypeStruct((1, *shape), self.stored_dtype, sharding=self.host_sharding),) * self.layers

        return Pages(*map(arrays, self.unit_shapes))

    def page_arrays(self) -> tuple[PageArray, ...]:
        """`k.0`, `k.1`, ... then `v.0`, ...: the layers counted as in the model, in the true dtype."""
        parts = zip("kv", self.unit_shapes, strict=True)
        return tuple(PageArray(f"{part}.{i}", self.dtype.name, shape) for part, shape in parts for i in self.layer_numbers)

    def gather(self, buffers: Buffers, indices: npt.NDArray[np.int32]) -> Pages:
        """Capture the pages `indices` (1-D int32) in that order, in pinned host memory. Returns at once: the arrays are futures,
        and `buffers` may be donated right away. There are at least as many rows as indices; the rest is padding.

        Raises ValueError for a page outside 1..total.
        """
        check_numbers(indices, self.total_pages)
        return self._gather(buffers, gathered_rows(indices))

    def scatter(self, buffers: Buffers, indices: npt.NDArray[np.int32], pages: Pages) -> Buffers:
        """Write row i of `pages` to page indices[i], unless that is SKIP; further rows are ignored. Donates `buffers` and returns
        at once. `pages` are in pinned host memory as `gather` gives them; arrays in device memory are taken too. Each number of
        rows is a program of its own, so give batches as they were captured, with SKIP, instead of slices.

        Raises ValueError, before anything is donated, for a page outside 1..total, fewer rows than indices, other shapes or
        another dtype than the pool's.
        """
        n = len(indices)
        rows = len(pages.k[0]) if pages.k else 0
        for arrays, shape in zip(pages, self.unit_shapes, strict=True):
            for array in arrays:
                if array.shape != (rows, *shape) or array.dtype != self.stored_dtype:
                    raise ValueError(f"pages of {array.dtype}{array.shape} do not fit a pool of {self.stored_dtype}{shape}")
        if len(pages.k) != self.layers or len(pages.v) != self.layers or rows < n:
            raise ValueError(f"{n} indices need as many pages of {self.layers} layers; there are {rows} of {len(pages.k)}")
        written = scattered_rows(indices, rows, self.total_pages)
        return buffers if written is None else self._scatter(buffers, written, pages)
