"""What the guard writes down on the owner thread: counters and events. It decides nothing."""

from collections.abc import Sequence
from typing import Literal, final

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.deps import CacheObserver
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.storage.answers import BadAnswerError
from kvcache_unified_hicache.storage.workers import NotCalledError, OverdueError


@final
class Books:
    def __init__(self, counters: CacheCounters, observers: Sequence[CacheObserver]) -> None:
        self._counters = counters
        self._observers = tuple(observers)

    def missed(self, reason: str, n: int = 1) -> None:
        """`n` pages were asked for and not delivered."""
        self._counters.misses[reason] += n

    def moved(self, direction: Literal["store", "fetch"], nbytes: int, seconds: float) -> None:
        """`seconds`: that one call took. Calls run side by side, so their seconds add up to more than the clock's."""
        self._counters.bytes_moved[direction] += nbytes
        # A Counter of floats: the contract keeps both directions and units in one kind of table.
        self._counters.seconds_moving[direction] += seconds  # pyright: ignore[reportArgumentType]

    def stored(self, keys: Sequence[str], nbytes: int) -> None:
        """The backend took a page of `nbytes` under each of `keys`."""
        for observer in self._observers:
            for key in keys:
                observer.page_stored(key, nbytes)

    def removed(self, keys: Sequence[str]) -> None:
        for observer in self._observers:
            for key in keys:
                observer.page_removed(key)

    def state(self, text: str) -> None:
        self._counters.storage_state = text


def reason_of(error: BaseException) -> str:
    """Why a page was a miss, in one of a few words, so that a report can add them up."""
    if isinstance(error, OverdueError):
        return Reasons.STORAGE_TIMEOUT
    if isinstance(error, BadAnswerError):
        return Reasons.STORAGE_ANSWER
    if isinstance(error, NotCalledError):
        return Reasons.STORAGE_OPEN
    return Reasons.STORAGE_ERROR
