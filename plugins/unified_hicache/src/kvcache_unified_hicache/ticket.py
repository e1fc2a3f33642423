"""The ticket of a load: the lock on what is being loaded, and the loads it waits for, its own and those it joined."""

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import final

from kvcache_core.contracts.locks import Lock, Ticket
from kvcache_core.errors import LockError
from kvcache_unified_hicache.loads import Loading, Loads
from kvcache_unified_hicache.transfer import Agree

_PAUSE = 0.0002
"""Seconds between two looks while waiting."""


@final
class LoadTicket(Ticket):
    """`usable(lock)`: whether all that the lock covers is on the device now. `turn`: one idle step, dispatch and poll.
    `agree`: with the other ranks, whose tickets are cancelled with this one."""

    def __init__(
        self,
        lock: Lock,
        waits_for: Sequence[Loading],
        loads: Loads,
        usable: Callable[[Lock], bool],
        unlock: Callable[[Lock], None],
        turn: Callable[[], None],
        agree: Agree,
    ) -> None:
        self._lock = lock
        self._waits_for = tuple(waits_for)
        self._loads = loads
        self._usable = usable
        self._unlock = unlock
        self._turn = turn
        self._agree = agree
        self._cancelled = False
        for loading in waits_for:
            loading.interest += 1

    @property
    def lock(self) -> Lock:
        return self._lock

    @property
    def done(self) -> bool:
        return all(loading.done for loading in self._waits_for)

    @property
    def ok(self) -> bool:
        """Looked up anew each time: a load that was joined may have ended well and yet not be usable (T1)."""
        return self.done and not self._cancelled and self._usable(self._lock)

    def wait(self, timeout: float) -> bool:
        until = monotonic() + timeout
        self._turn()
        while not self.done and monotonic() < until:
            sleep(_PAUSE)
            self._turn()
        return self.done

    def cancel(self) -> None:
        """Raises LockError when it was cancelled before, or its lock was released."""
        if self._cancelled:
            raise LockError("this load was cancelled before")
        # The lock first: if it is not held any more, nothing else changes.
        self._unlock(self._lock)
        self._cancelled = True
        for loading in self._waits_for:
            self._loads.leave(loading, self._agree)
