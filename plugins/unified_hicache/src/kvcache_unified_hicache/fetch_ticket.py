"""The ticket of a prefetch: it watches a fetch, and holds nothing."""

from collections.abc import Callable
from time import monotonic
from typing import final

from kvcache_core.contracts.locks import Lock, Ticket
from kvcache_core.errors import LockError
from kvcache_unified_hicache.fetch import Fetch

_PAUSE = 0.0002
"""Seconds between two looks while waiting."""


@final
class FetchTicket(Ticket):
    """`usable(fetch)`: whether what it was to bring is usable from memory now. `turn`: one idle step, dispatch and poll. `pause`:
    waits until the next one may be of use, and about as many seconds."""

    def __init__(
        self, fetch: Fetch, usable: Callable[[Fetch], bool], turn: Callable[[], None], pause: Callable[[float], None]
    ) -> None:
        self._fetch = fetch
        self._usable = usable
        self._turn = turn
        self._pause = pause
        self._cancelled = False
        fetch.interest += 1

    @property
    def lock(self) -> Lock | None:
        return None

    @property
    def done(self) -> bool:
        return self._fetch.done

    @property
    def ok(self) -> bool:
        """Whether all that storage promised is usable from memory. Looked up anew each time."""
        return self.done and not self._cancelled and self._usable(self._fetch)

    @property
    def span(self) -> tuple[int, int]:
        return self._fetch.span

    def wait(self, timeout: float) -> bool:
        until = monotonic() + timeout
        self._turn()
        while not self.done and monotonic() < until:
            self._pause(_PAUSE)
            self._turn()
        return self.done

    def cancel(self) -> None:
        """Only interest is withdrawn: what is on its way arrives all the same, and is used if somebody has a use for it.

        Raises LockError when it was cancelled before.
        """
        if self._cancelled:
            raise LockError("this prefetch was cancelled before")
        self._cancelled = True
        self._fetch.interest -= 1
