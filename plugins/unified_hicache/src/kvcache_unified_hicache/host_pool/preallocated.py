"""The host pool of plan B: one set of buffers in pinned host memory, written in place by donation.

Slots lie in one piece and nothing is ever allocated for them again, but every page is copied once more on its way in and out,
and both copies are programs that the owner thread dispatches. In place and bit exact on the CPU; an open bug in XLA aborts
scatters into pinned host memory on accelerators, where this pool must not be used.
"""

from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np

from kvcache_core.contracts.pools import Pages
from kvcache_core.contracts.results import Indices
from kvcache_core.errors import IntegrityError
from kvcache_unified_hicache.host_pool.base import HostKVPool, Victims
from kvcache_unified_hicache.host_pool.captured import CapturedPages
from kvcache_unified_hicache.host_pool.discards import Discards
from kvcache_unified_hicache.host_pool.pack_job import PackJob
from kvcache_unified_hicache.host_pool.page_layout import PageSource

SPARE_SHARE: Final = 2
"""What is spare may be one part in so many of the slots: as much as fetches may have under way, whose batches end with `put`."""


@final
class PreallocatedPool(HostKVPool):
    """`HostKVPool` of one donated buffer set. `put` and `get` dispatch one program each and do not wait for it."""

    def __init__(self, struct: Pages, total: int, victims: Victims | None = None, discards: Discards | None = None) -> None:
        """Takes the memory of all slots at once. Batches are copied and not kept, so there is nothing to discard."""
        super().__init__(struct, total, victims, discards)
        whole = self._layout.struct(total)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, whole)

        def zeros() -> Pages:
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, _stored_as(leaf.dtype)), whole)

        self._buffers: Pages = jax.jit(zeros, out_shardings=shardings)()
        self._write = jax.jit(_write, donate_argnums=0, out_shardings=shardings)
        dtypes = jax.tree.map(lambda leaf: leaf.dtype, whole)
        self._read = jax.jit(lambda buffers, slots: _read(buffers, slots, dtypes), out_shardings=shardings)
        self._has_content = np.zeros(total + 1, np.bool_)

    @property
    def live_bytes(self) -> int:
        return self.budget_bytes + self._live.total

    def check_integrity(self) -> None:
        self._check_slots(set(np.flatnonzero(self._has_content).tolist()))
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(self._buffers)):
            raise IntegrityError("the pool refers to buffers that it donated")

    def pack_job(self) -> PackJob | None:
        """Nothing is ever sparse here."""
        self._trim_spare(self.budget_bytes // SPARE_SHARE)
        return None

    def finish_packing(self, job: PackJob) -> None:
        job.clear()

    def _put(self, slots: Indices, pages: Pages, start: int, n_rows: int) -> None:
        targets = np.full(n_rows, self._total, np.int32)  # out of range: dropped
        targets[start : start + len(slots)] = slots - 1
        self._buffers = self._write(self._buffers, targets, pages)
        self._has_content[slots] = True

    def _get(self, slots: Indices) -> CapturedPages:
        if not len(slots):
            return CapturedPages(self._layout, ())
        filled = self._has_content[slots]
        if not filled.all():
            raise ValueError(f"slot {slots.item(filled.argmin())} has no content yet")
        rows = np.zeros(1 << (len(slots) - 1).bit_length(), np.int32)
        rows[: len(slots)] = slots - 1
        pages = self._read(self._buffers, rows)
        self._live.watch(self._layout.one_of(pages), len(rows) * self.page_bytes)
        return CapturedPages(self._layout, [PageSource(pages, row) for row in range(len(slots))])

    def _drop(self, slots: Indices) -> None:
        self._has_content[slots] = False


def _stored_as(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """XLA's CPU backend scatters bfloat16 and float8 through float32, which is slow and loses bits of NaNs: the same bits go as
    integers. Other types go as they are; converting float32 would cost more than it brings."""
    narrow = dtype.name == "bfloat16" or dtype.name.startswith("float8")
    return np.dtype(f"uint{8 * dtype.itemsize}") if narrow else dtype


def _write(buffers: Pages, slots: jax.Array, pages: Pages) -> Pages:
    slots = _weighed(slots)

    def put(buffer: jax.Array, rows: jax.Array) -> jax.Array:
        rows = rows if rows.dtype == buffer.dtype else jax.lax.bitcast_convert_type(rows, buffer.dtype)
        return buffer.at[_beside(buffer, slots)].set(rows, mode="drop")

    return jax.tree.map(put, buffers, pages)


def _read(buffers: Pages, slots: jax.Array, dtypes: Any) -> Pages:
    slots = _weighed(slots)

    def pick(buffer: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
        rows = buffer.at[_beside(buffer, slots)].get(mode="promise_in_bounds")
        return rows if dtype == buffer.dtype else jax.lax.bitcast_convert_type(rows, dtype)

    return jax.tree.map(pick, buffers, dtypes)


def _weighed(slots: jax.Array) -> jax.Array:
    """`slots` unchanged, after more than 1,000 operations that XLA cannot leave out. The CPU client runs programs of fewer
    operations in the calling thread, and it does not count copies as operations."""
    never_negative = jnp.sum(jnp.arange(1024, dtype=jnp.int32) & slots[0])
    return slots + jnp.minimum(never_negative, 0)


def _beside(buffer: jax.Array, slots: jax.Array) -> jax.Array:
    """`slots` in the memory that jax takes `buffer` to be in: it refuses to index one memory with numbers in another."""
    return jax.device_put(slots, jax.typeof(buffer).memory_space)
