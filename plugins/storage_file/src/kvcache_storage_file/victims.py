"""Which page goes next: the least recently used one, without an index of pages.

A batch of candidates is chosen by looking into some shards in turn, as many as it takes to see a few thousand pages. Keys are
hashes, so some shards are a fair sample of all: their oldest sixteenth is among the oldest of the root. Up to those few thousand
pages the sample is everything, and the order exact. A candidate that was used since it was seen is passed over.

A page may be older than candidates that were chosen before it was written: one call's pages have descending times of use. It
matters only where one call writes more than there is room for, and is looked for only there.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from kvcache_storage_file.layout import SHARDS
from kvcache_storage_file.pages import Page, Pages

Look = Callable[[int, Callable[[], Sequence[Page]]], Sequence[Page]]
"""What `Ledger.look` does: gives the pages that the second finds in a shard."""

SAMPLE = 4096
_SHARE = 16
_SET_ASIDE = 60.0
"""Seconds for which a page that could not be removed is no candidate."""


@final
class Victims:
    """The candidates of one root. Thread safe."""

    def __init__(self, pages: Pages, look: Look) -> None:
        self._pages = pages
        self._look = look
        self._lock = threading.Lock()
        self._queue: deque[Page] = deque()
        self._next_shard = 0
        self._set_aside: dict[str, float] = {}

    def next(self, used: int) -> Page | None:
        """A page to remove for one whose time of use is `used` (ns); None when there is none in the whole root. Whether it is
        removed is the caller's affair.
        """
        with self._lock:
            # What has a later stamp than the page to come may be its own call's, and there may be pages between the two. Stamps
            # from the future (a clock that was set back) say nothing of the kind.
            if not self._queue or used < self._queue[0].used <= time.time_ns():
                self._queue.clear()
                self._refill()
            return self._queue.popleft() if self._queue else None

    def set_aside(self, page: Page) -> None:
        """The page could not be removed; others come first."""
        with self._lock:
            self._set_aside[page.path] = time.monotonic() + _SET_ASIDE

    def _refill(self) -> None:
        now = time.monotonic()
        self._set_aside = {path: until for path, until in self._set_aside.items() if until > now}
        seen: list[Page] = []
        looked = 0
        while looked < len(SHARDS) and len(seen) < SAMPLE:
            shard = (self._next_shard + looked) % len(SHARDS)
            # The scopes are listed anew under the lock: a folder made since the last shard would be left out of the count.
            seen += self._look(shard, lambda number=shard: self._pages.of_shard(number))
            looked += 1
        self._next_shard = (self._next_shard + looked) % len(SHARDS)
        candidates = sorted(page for page in seen if page.path not in self._set_aside)
        # After a look at everything the whole order is known, and stays right: what is used or new has a later stamp, but for
        # pages of one call, see `next`.
        self._queue.extend(candidates if looked == len(SHARDS) else candidates[: max(1, len(candidates) // _SHARE)])
