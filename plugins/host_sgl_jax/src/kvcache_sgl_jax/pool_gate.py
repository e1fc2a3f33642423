"""The gate to sgl-jax's device buffers: where queued copies are dispatched.

sgl-jax's forward takes its buffers itself, from another thread when scheduling overlaps, and knows no gate. So the rule that a
page is not written before its copy was dispatched is kept from the other side: whoever evicts flushes at once. Before buffers
are touched, the forward launched last has to have put its new buffers back; only the scheduler can tell, and gives a function
for it.
"""

from collections.abc import Callable, Mapping
from typing import final

from kvcache_core.transfer_queue import TransferQueue
from kvcache_sgl_jax.kv_pages import Buffers, HostPool

FULL = "full"


@final
class Barrier:
    """Waits until no forward is between donating its buffers and putting the new ones back; at first there is nothing to wait
    for. The scheduler sets the function after it has made its cache."""

    def __init__(self) -> None:
        self._wait: Callable[[], None] | None = None

    def set(self, wait: Callable[[], None] | None) -> None:
        self._wait = wait

    def wait(self) -> None:
        if self._wait is not None:
            self._wait()


@final
class PoolGate:
    """Implements the core's `PoolSet` over one pool of the host, for the rank that `queue` copies for."""

    def __init__(self, pool: HostPool, queue: TransferQueue, barrier: Barrier) -> None:
        self._pool = pool
        self._queue = queue
        self._barrier = barrier
        self._taken = False

    def take(self) -> dict[str, Buffers]:
        """Dispatch what is queued and hand out the buffers. Raises RuntimeError when they are out already."""
        if self._taken:
            raise RuntimeError("the pool buffers are already taken; every take() must be followed by give()")
        self._barrier.wait()
        self._taken = True
        return self._queue.dispatch({FULL: list(self._pool.kv_buffer)})

    def give(self, buffers: Mapping[str, Buffers]) -> None:
        """Put the buffers back into the host's pool. Raises RuntimeError when nothing is taken."""
        if not self._taken:
            raise RuntimeError("give() without take(): the pool buffers are here already")
        self._taken = False
        self._pool.replace_buffer(buffers[FULL])

    def flush(self) -> None:
        """Dispatch what is queued, if anything is."""
        if self._queue.pending():
            self.give(self.take())
