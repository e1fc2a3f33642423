"""The gate to the buffers of all pools.

Buffers are donated to every program that writes them, so only one holder may name them.
"""

from collections.abc import Mapping

from kvcache_core.contracts.pools import Buffers
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.pools.engine_pool import EnginePool


class EnginePools:
    """Implements the core's `PoolSet`. Creates the buffers of `pools` and dispatches `queue` whenever they are taken."""

    __slots__ = ("_buffers", "_names", "_queue")

    def __init__(self, pools: Mapping[str, EnginePool], queue: TransferQueue) -> None:
        self._names = frozenset(pools)
        self._queue = queue
        self._buffers: dict[str, Buffers] | None = {name: pool.create() for name, pool in pools.items()}

    def take(self) -> dict[str, Buffers]:
        """Dispatch queued transfers, then hand out all buffers; the caller owns them until `give`.

        Raises RuntimeError when they are out already: two writers would donate the same buffer.
        """
        if self._buffers is None:
            raise RuntimeError("the pool buffers are already taken; every take() must be followed by give()")
        # The queue may donate the buffers, so this object must not name them while it runs.
        buffers, self._buffers = self._buffers, None
        return self._queue.dispatch(buffers)

    def give(self, buffers: Mapping[str, Buffers]) -> None:
        """Put back what `take` handed out, after any number of writes.

        Raises:
            RuntimeError: nothing is taken.
            ValueError: a component is missing or unknown; the buffers stay with the caller.
        """
        if self._buffers is not None:
            raise RuntimeError("give() without take(): the pool buffers are here already")
        if frozenset(buffers) != self._names:
            raise ValueError(f"give() needs the buffers of {sorted(self._names)}, not of {sorted(buffers)}")
        self._buffers = dict(buffers)
