"""The end of a run: what only L1 or L2 holds is sent to storage (L3), with progress, and with a way out for whoever waits.

It speaks to the cache through the contract alone; what is stored, and when that is enough, is the cache's business.
"""

from collections.abc import Callable
from time import monotonic
from typing import Protocol, TypedDict

from kvcache_core.contracts.results import PersistReport

SLICE = 0.25
"""Seconds after which progress is shown and a wish to stop is noticed."""


class Persistable(Protocol):
    """The part of a prefix cache that this needs."""

    def persist(self, deadline: float) -> PersistReport: ...


class Persisted(TypedDict):
    """What became, at the end, of pages that storage did not have yet."""

    stored: int
    """Pages that the storage confirmed."""
    dropped: dict[str, int]
    """Pages that were given up, by reason."""
    remaining: int
    """Pages that were not reached: the time was over (`hicache.persist_timeout`), or an interrupt ended it."""
    seconds: float
    """How long it took."""
    message: str
    """What the cache has to say, for instance that its settings never write; may be empty."""


def persist(cache: Persistable, seconds: float, stopped: Callable[[], bool], progress: Callable[[int, int], None]) -> Persisted:
    """Persist for at most `seconds`, or until `stopped()`. `progress(stored, remaining)`, in pages, is called now and then."""
    started = monotonic()
    until = started + seconds
    stored = 0
    while True:
        report = cache.persist(max(0.0, min(SLICE, until - monotonic())))
        stored += report.stored
        progress(stored, report.remaining)
        if not report.remaining or stopped() or monotonic() >= until:
            break
    return {
        "stored": stored,
        # Those of the last slice: each one tries again what the ones before gave up.
        "dropped": dict(report.dropped or {}),
        "remaining": report.remaining,
        "seconds": monotonic() - started,
        "message": report.message,
    }
