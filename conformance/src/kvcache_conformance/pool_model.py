"""Device memory in numpy: a strict allocator, a pool whose buffers are donated by writes, and the gate in front of them.

They implement the core's protocols for hosts, so that any cache can be built on them. They know no tokens and no cache.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from kvcache_conformance.page_content import BYTES, LAYERS
from kvcache_core.contracts.pools import SKIP, PageArray, Pages
from kvcache_core.contracts.results import Indices
from kvcache_core.errors import DoubleFreeError
from kvcache_core.transfer_queue import TransferQueue

Memory = npt.NDArray[np.uint8]
"""(pages, LAYERS, BYTES)."""

DONATED = 0xDD
"""What a buffer is filled with once a write has consumed it."""


class Journal(NamedTuple):
    """What an allocator did since it was last asked."""

    taken: tuple[int, ...]
    freed: tuple[int, ...]


@final
class StrictAllocator:
    """Indices 1..total, the last freed first, so that a page freed too early is overwritten soon. It writes down every move."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = list(range(total, 0, -1))
        self._is_free = set(self._free)
        self._taken: list[int] = []
        self._freed: list[int] = []

    @property
    def total(self) -> int:
        return self._total

    @property
    def n_free(self) -> int:
        return len(self._free)

    def is_free(self, index: int) -> bool:
        return index in self._is_free

    def alloc(self, n: int) -> Indices | None:
        if n > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(n)]
        self._is_free.difference_update(taken)
        self._taken += taken
        return np.asarray(taken, np.int32)

    def free(self, indices: Indices) -> None:
        """Raises DoubleFreeError and frees nothing when one of them is not out."""
        out: Sequence[int] = np.asarray(indices).tolist()
        for place, index in enumerate(out):
            if not 1 <= index <= self._total:
                raise DoubleFreeError(f"index {index} was never given out: the pool has 1 to {self._total}")
            if index in self._is_free or index in out[:place]:
                raise DoubleFreeError(f"index {index} is free already")
        self._free += reversed(out)
        self._is_free.update(out)
        self._freed += out

    def journal(self) -> Journal:
        """Everything since the last call, which is then forgotten."""
        journal = Journal(tuple(self._taken), tuple(self._freed))
        self._taken.clear()
        self._freed.clear()
        return journal


@final
class NumpyPool:
    """One component's pages. A scatter consumes its buffer as a donating program does: whoever kept it reads rubbish.

    `host_struct`: what the pool says of one page; by default a page of numpy, for caches that keep pages as arrays. A cache with
    real host pools needs jax's description, which the kit does not know: its test brings it.
    """

    def __init__(self, component: str, host_struct: Pages = None) -> None:
        self._identity = f"{component}/uint8/{LAYERS}x{BYTES}".encode()
        self._host_struct = np.empty((1, LAYERS, BYTES), np.uint8) if host_struct is None else host_struct

    @property
    def identity(self) -> bytes:
        return self._identity

    def host_struct(self) -> Pages:
        return self._host_struct

    def page_arrays(self) -> tuple[PageArray, ...]:
        return (PageArray("bytes", "uint8", (LAYERS, BYTES)),)

    def gather(self, buffers: Memory, indices: Indices) -> Memory:
        pages = buffers[indices]
        pages.setflags(write=False)
        return pages

    def scatter(self, buffers: Memory, indices: Indices, pages: Memory) -> Memory:
        written = buffers.copy()
        rows = np.flatnonzero(indices != SKIP)
        written[indices[rows]] = pages[rows]
        buffers.fill(DONATED)
        return written


@final
class NumpyPoolSet:
    """The buffers of all components behind the queue's dispatch. `totals`: pages by component, the dummy not counted."""

    def __init__(self, totals: Mapping[str, int], queue: TransferQueue) -> None:
        self._buffers: dict[str, Memory] = {name: np.zeros((n + 1, LAYERS, BYTES), np.uint8) for name, n in totals.items()}
        self._queue = queue
        self._out = False

    def take(self) -> Mapping[str, Memory]:
        assert not self._out, "the buffers are out already"
        self._out = True
        return self._queue.dispatch(self._buffers)

    def give(self, buffers: Mapping[str, Memory]) -> None:
        assert self._out, "give without take"
        self._out = False
        self._buffers = dict(buffers)

    def peek(self, component: str, indices: Indices) -> Memory:
        """A copy of some pages as they are, without dispatching anything: for looking on."""
        assert not self._out, "the buffers are out"
        return self._buffers[component][indices]
