"""What a host brings: allocators, device pools, and the one gate through which pool buffers are taken for a write.

The core knows no jax; `Buffers` and `Pages` are whatever arrays the host's pools hold. A pool's buffers are donated to every
program that writes them, so only their owner may name them, and `PoolSet.take` is the only way to get them.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from kvcache_core.contracts.results import Indices

Buffers = Any
"""The arrays of one component's device pool (a pytree of device arrays)."""
Pages = Any
"""The content of some pages, captured: a pytree of immutable arrays in pinned host memory whose leading axis counts pages."""

SKIP: Final = -1
"""In the indices of a scatter: this row is not written."""


class PageArray(NamedTuple):
    """One array of a page. `dtype`: what the numbers are, such as "bfloat16", also where a pool stores their bits as integers.
    `shape`: of one page, without the axis that counts pages."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Allocator(Protocol):
    """Hands out the indices 1..total of one component's pool. Index 0 is the dummy page and is never given out."""

    @property
    def total(self) -> int: ...

    @property
    def n_free(self) -> int: ...

    def alloc(self, n: int) -> Indices | None:
        """`n` indices, or None at once when fewer are free: all or nothing."""
        ...

    def free(self, indices: Indices) -> None:
        """Give indices back. Raises DoubleFreeError, freeing none, if one of them is free already or was never given out."""
        ...


class DevicePool(Protocol):
    """One component's pages on the device. Gather and scatter only dispatch, without waiting, on the owner thread."""

    @property
    def identity(self) -> bytes:
        """True dtype, layout, layer range and shard, framed: pages of pools that differ here are never exchanged."""
        ...

    def host_struct(self) -> Pages:
        """One page as `gather` captures it, without content: `jax.ShapeDtypeStruct`s with a leading axis of 1 and shardings in
        pinned host memory. Host pools are sized and laid out by it."""
        ...

    def page_arrays(self) -> tuple[PageArray, ...]:
        """What one page consists of, in the order of the leaves of `host_struct`. A stored page carries it as a table."""
        ...

    def gather(self, buffers: Buffers, indices: Indices) -> Pages:
        """Capture the pages `indices` in that order, into pinned host memory; later writes to `buffers` do not change the result,
        whose arrays are futures. It may have more rows than `indices`: the rest is padding. One program makes all arrays, so they
        are complete, or failed, together, and one program makes every batch of as many rows."""
        ...

    def scatter(self, buffers: Buffers, indices: Indices, pages: Pages) -> Buffers:
        """Write row i of `pages` to the page indices[i], unless that is SKIP; rows beyond the indices are padding. Donates
        `buffers`; the result replaces them. `pages` is a whole batch that `gather` or a host pool gave."""
        ...


class PoolSet(Protocol):
    """The gate. Between `take` and `give` the host owns the buffers of all components and may donate them."""

    def take(self) -> Mapping[str, Buffers]:
        """Dispatch the transfer queue, then hand out the buffers. A freed page may be given out again before its gather is
        dispatched but is never written before it, because writing needs buffers and buffers come from here."""
        ...

    def give(self, buffers: Mapping[str, Buffers]) -> None:
        """Put the buffers back after a write."""
        ...
