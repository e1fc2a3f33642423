"""Copies of whole rows (pages or states) between the arrays of a pool and pinned host memory.

What was measured decides the form: one program over a list of layers that reads or writes pinned host memory itself, and counts
of rows rounded up to powers of two. It does not know what a row holds.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.pools import SKIP
from kvcache_engine.buckets import bucket

Arrays = Sequence[jax.Array]
Numbers = npt.NDArray[np.int32]


def pick_rows(arrays: Arrays, indices: jax.Array) -> tuple[jax.Array, ...]:
    """The rows `indices` of each array. To be called inside a compiled program."""
    indices = _weighed(indices)
    return tuple(array.at[indices].get(mode="promise_in_bounds") for array in arrays)


def put_rows(arrays: Arrays, indices: jax.Array, rows: Arrays) -> tuple[jax.Array, ...]:
    """Each array with `rows` written at `indices`; an index out of range drops its row. To be called inside a program."""
    indices = _weighed(indices)

    def put(array: jax.Array, new: jax.Array) -> jax.Array:
        # A copy of its own on an accelerator; XLA's CPU backend reads the host array in place.
        return array.at[indices].set(jax.device_put(new, jax.memory.Space.Device), mode="drop")

    return tuple(map(put, arrays, rows))


def check_numbers(indices: Numbers, total: int) -> None:
    """Raises ValueError for an index outside 1..total."""
    if len(indices) and (int(indices.min()) < 1 or int(indices.max()) > total):
        raise ValueError(f"pages are 1 to {total}; got {int(indices.min())} to {int(indices.max())}")


def gathered_rows(indices: Numbers) -> Numbers:
    """`indices`, padded with the dummy to the number of rows that a program is made for."""
    padded = np.zeros(bucket(len(indices)), np.int32)
    padded[: len(indices)] = indices
    return padded


def scattered_rows(indices: Numbers, rows: int, total: int) -> Numbers | None:
    """Where each of `rows` rows goes, out of range for those that are skipped or beyond `indices`; None when nothing is written.

    Raises ValueError for an index that is neither SKIP nor in 1..total.
    """
    written = indices[indices != SKIP]
    check_numbers(written, total)
    if not len(written):
        return None
    # Out of range is what XLA drops; -1 would be the last page.
    padded = np.full(rows, 1 + total, np.int32)
    padded[: len(indices)] = np.where(indices == SKIP, 1 + total, indices)
    return padded


def _weighed(indices: jax.Array) -> jax.Array:
    """`indices` unchanged, after more than 1,000 operations that XLA cannot leave out.

    The CPU client runs programs of fewer operations in the thread that calls them, and it does not count copies: without this,
    the engine's thread would move the pages itself (64 pages of 720 KiB: 1.5 ms instead of 0.4 ms for a scatter).
    """
    never_negative = jnp.sum(jnp.arange(1024, dtype=jnp.int32) & indices[0])
    return indices + jnp.minimum(never_negative, 0)
