"""How one page lies in host memory: as one row of a batch of arrays, or packed as plain bytes, and how to go from one to the
other.

A page is any pytree of arrays, each split or replicated over the same devices. Packed, it is one uint8 array with a row for
each device: the bytes of all its arrays there, one after the other. It does not know what the arrays mean, nor who owns a page.

Packing and assembling only copy bytes between arrays that nobody writes; they touch no pool and may run on any thread.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, final

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from kvcache_core.contracts.pools import Pages

MAX_ROWS = 64  # of a batch made here: enough for full speed, few enough to compile programs for
ALIGNMENT = 64  # what the CPU client wants of memory that it takes over instead of copying

ByteRows = list[list[npt.NDArray[np.uint8]]]
"""By device and array: uint8 [rows, bytes of one row of that array there]."""


class PageSource(NamedTuple):
    """Where one page is: row `row` of the batch `pages`, or `pages` is a packed page and `row` is -1."""

    pages: Pages
    row: int


@final
class PageLayout:
    """`struct`: one page as `DevicePool.host_struct` describes it.

    `page_bytes` counts every device's copy, so replicated arrays count as often as they are stored; `payload_bytes` counts each
    array once, as a whole. A page's payload is the raw bytes of its arrays, one after the other, whatever devices they lie on.
    """

    def __init__(self, struct: Pages) -> None:
        """Raises ValueError for a struct without arrays or shardings, outside pinned host memory, over different devices, or
        whose leading axis is not 1 or is split."""
        paths, self._treedef = jax.tree.flatten_with_path(struct)
        leaves: list[Any] = [leaf for _, leaf in paths]
        if not leaves:
            raise ValueError("a page needs at least one array")
        self._to_one = [_step(key) for key in paths[0][0]]
        shardings: list[Sharding] = [_pinned_sharding(leaf) for leaf in leaves]
        self.devices = sorted(shardings[0].addressable_devices, key=lambda device: device.id)
        self.shapes: list[tuple[int, ...]] = [tuple(leaf.shape[1:]) for leaf in leaves]
        self.dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        self.shardings = shardings
        self._parts: list[tuple[int, ...]] = []
        for leaf, sharding in zip(leaves, shardings, strict=True):
            if set(sharding.addressable_devices) != set(self.devices) or not sharding.is_fully_addressable:
                raise ValueError("all arrays of a page must lie on the same devices of this process")
            if leaf.shape[:1] != (1,) or sharding.shard_shape((len(self.devices), *leaf.shape[1:]))[0] != len(self.devices):
                raise ValueError(f"a page has a leading axis of 1 that is not split over devices; got {leaf.shape}, {sharding}")
            self._parts.append(tuple(sharding.shard_shape(leaf.shape)[1:]))
        sizes = [int(np.prod(part)) * dtype.itemsize for part, dtype in zip(self._parts, self.dtypes, strict=True)]
        ends = np.cumsum(sizes).tolist()
        self._spans = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._device_bytes: int = ends[-1]
        self.page_bytes = self._device_bytes * len(self.devices)
        whole = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]
        starts = [0, *np.cumsum(whole).tolist()]
        self._places = list(pairwise(starts))
        self.payload_bytes: int = starts[-1]
        self._on = [SingleDeviceSharding(device, memory_kind="pinned_host") for device in self.devices]
        mesh = Mesh(np.array(self.devices, dtype=object), ("device",))
        self._packed_sharding = NamedSharding(mesh, PartitionSpec("device"), memory_kind="pinned_host")

    def one_of(self, pages: Pages) -> jax.Array:
        """The first array of a batch, without looking at the others."""
        for step in self._to_one:
            pages = step(pages)
        return pages

    def struct(self, rows: int) -> Pages:
        """A batch of `rows` pages, without content."""
        arrays = zip(self.shapes, self.dtypes, self.shardings, strict=True)
        return self._tree([jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=s) for shape, dtype, s in arrays])

    def rows_of(self, pages: Pages) -> int:
        """How many rows the batch `pages` has. Raises ValueError when it is no batch of these pages in pinned host memory."""
        leaves, treedef = jax.tree.flatten(pages)
        if treedef != self._treedef:
            raise ValueError(f"pages of structure {treedef} do not fit a host pool of {self._treedef}")
        rows = leaves[0].shape[0]
        for leaf, shape, dtype, expected in zip(leaves, self.shapes, self.dtypes, self.shardings, strict=True):
            if leaf.shape != (rows, *shape) or leaf.dtype != dtype:
                raise ValueError(f"pages of {leaf.dtype}{leaf.shape} do not fit a host pool of {dtype}{(rows, *shape)}")
            placed: Sharding = leaf.sharding
            if placed is not expected and placed != expected and not placed.is_equivalent_to(expected, leaf.ndim):
                raise ValueError(f"pages must be in pinned_host memory and laid out as {expected}, not as {placed}")
        return rows

    def pack(self, pages: Pages, rows: Sequence[int]) -> list[jax.Array]:
        """The pages in `rows` of a batch, each packed into memory of its own. Blocks until the batch is there; copies its
        bytes."""
        views = self._byte_rows(pages)
        return [self._pack_row(views, row) for row in rows]

    def assemble(self, sources: Sequence[PageSource]) -> Pages:
        """A new batch of the pages `sources` in that order, at most MAX_ROWS, padded to a power of two with rows of no meaning.
        Blocks until all sources are there; copies their bytes."""
        assert 0 < len(sources) <= MAX_ROWS
        rows = 1 << (len(sources) - 1).bit_length()
        views = {id(s.pages): self._byte_rows(s.pages) if s.row >= 0 else self._packed_rows(s.pages) for s in sources}
        made: list[list[npt.NDArray[Any]]] = []
        for d in range(len(self.devices)):
            picked = [(views[id(source.pages)][d], max(source.row, 0)) for source in sources]
            made.append([self._stack([(of[leaf], row) for of, row in picked], leaf, rows) for leaf in range(len(self.shapes))])
        placed: list[list[jax.Array]] = jax.device_put(made, [[on] * len(self.shapes) for on in self._on])
        arrays: list[jax.Array] = []
        for leaf, (shape, sharding) in enumerate(zip(self.shapes, self.shardings, strict=True)):
            parts = [on_device[leaf] for on_device in placed]
            arrays.append(jax.make_array_from_single_device_arrays((rows, *shape), sharding, parts))
        return self._tree(arrays)

    def write_payloads(self, sources: Sequence[PageSource], outputs: Sequence[memoryview]) -> None:
        """Write the payload of each of the pages `sources` to the output of the same place, `payload_bytes` long each. Blocks
        until all sources are there."""
        if len(self.devices) > 1:
            self._write_joined(sources, outputs)
            return
        views = {id(s.pages): self._byte_rows(s.pages) if s.row >= 0 else self._packed_rows(s.pages) for s in sources}
        for source, output in zip(sources, outputs, strict=True):
            row = max(source.row, 0)
            for (start, end), leaf in zip(self._places, views[id(source.pages)][0], strict=True):
                output[start:end] = leaf[row].data

    def spans(self) -> list[tuple[int, int]]:
        """Where each array is in a payload: its first byte and the one after its last."""
        return list(self._places)

    def taken_over(self, memory: Sequence[npt.NDArray[np.uint8]], rows: int) -> Pages:
        """A batch of `rows` pages out of `memory`: for each array its bytes of all rows, one after another, which nobody writes
        any more. A client whose host memory this is keeps it and copies nothing, if it begins at a multiple of ALIGNMENT; it is
        referenced as long as anybody needs the batch. Complete when this returns."""
        leaves: list[jax.Array] = []
        for part, shape, dtype, sharding in zip(memory, self.shapes, self.dtypes, self.shardings, strict=True):
            # device_put does the same and takes nearly twice as long, 20 us an array.
            whole = part.view(dtype).reshape(rows, *shape)
            leaves.append(jax.make_array_from_callback(whole.shape, sharding, whole.__getitem__))
        return self._tree(jax.block_until_ready(leaves))

    def _write_joined(self, sources: Sequence[PageSource], outputs: Sequence[memoryview]) -> None:
        for first in range(0, len(sources), MAX_ROWS):
            chunk = sources[first : first + MAX_ROWS]
            arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(self.assemble(chunk))]
            for row, output in enumerate(outputs[first : first + MAX_ROWS]):
                for (start, end), array in zip(self._places, arrays, strict=True):
                    output[start:end] = np.ascontiguousarray(array[row]).reshape(-1).view(np.uint8).data

    def _tree(self, leaves: Sequence[Any]) -> Pages:
        return jax.tree.unflatten(self._treedef, leaves)

    def _byte_rows(self, pages: Pages) -> ByteRows:
        by_device: ByteRows = [[] for _ in self.devices]
        for leaf in jax.tree.leaves(pages):
            for d, part in enumerate(self._on_devices(leaf)):
                by_device[d].append(part.reshape(len(part), -1).view(np.uint8))
        return by_device

    def _packed_rows(self, packed: jax.Array) -> ByteRows:
        return [[part[:, a:b] for a, b in self._spans] for part in self._on_devices(packed)]

    def _on_devices(self, array: jax.Array) -> list[npt.NDArray[Any]]:
        """Each device's part of an array. Views of its memory on the CPU; copies where the client cannot give those."""
        if len(self.devices) == 1:
            return [np.ascontiguousarray(array)]
        parts = {shard.device: shard.data for shard in array.addressable_shards}
        return [np.ascontiguousarray(parts[device]) for device in self.devices]

    def _pack_row(self, views: ByteRows, row: int) -> jax.Array:
        parts: list[npt.NDArray[np.uint8]] = []
        for on_device in views:
            part = _aligned(self._device_bytes)
            np.concatenate([leaf[row] for leaf in on_device], out=part)
            parts.append(part.reshape(1, -1))
        shape = (len(parts), self._device_bytes)
        return jax.make_array_from_single_device_arrays(shape, self._packed_sharding, jax.device_put(parts, self._on))

    def _stack(self, picked: Sequence[tuple[npt.NDArray[np.uint8], int]], leaf: int, rows: int) -> npt.NDArray[Any]:
        start, end = self._spans[leaf]
        stacked = _aligned(rows * (end - start))
        np.concatenate([view[row] for view, row in picked], out=stacked[: len(picked) * (end - start)])
        return stacked.view(self.dtypes[leaf]).reshape(rows, *self._parts[leaf])


def _step(key: Any) -> Callable[[Any], Any]:
    """From a node of a pytree to the child that `key` names."""
    match key:
        case jax.tree_util.GetAttrKey():
            return attrgetter(key.name)
        case jax.tree_util.SequenceKey():
            return itemgetter(key.idx)
        case jax.tree_util.DictKey():
            return itemgetter(key.key)
        case _:
            raise ValueError(f"pages are pytrees of tuples, lists, named tuples, dictionaries and dataclasses; {key!r} is none")


def _pinned_sharding(leaf: Any) -> Sharding:
    sharding: Sharding | None = leaf.sharding
    if sharding is None or sharding.memory_kind != "pinned_host":
        raise ValueError(f"host pages need a sharding in pinned_host memory, not {sharding}")
    return sharding


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]
