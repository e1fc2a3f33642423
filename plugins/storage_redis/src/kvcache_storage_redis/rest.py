"""A node that fails is left alone for a while, so that its pages cost no waiting and the other nodes' pages still hit.

The guard around a storage does this for the store as a whole; it does not see nodes.
"""

import logging
import threading
from typing import Final, final

from kvcache_storage_redis.errors import Address, ServerError
from kvcache_storage_redis.fleet import Clock

REST: Final = 5.0
"""Seconds until it is tried again, by one call alone."""

log = logging.getLogger(__name__)


@final
class Rest:
    """Of one node. Thread safe."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._lock = threading.Lock()
        self._error: ServerError | None = None
        self._until = 0.0

    @property
    def error(self) -> ServerError | None:
        """Why it is left alone; None once it has answered."""
        return self._error

    def turned_away(self) -> ServerError | None:
        """None: it may be asked. Else the error that stands for its replies."""
        with self._lock:
            if self._error is None:
                return None
            if self._clock() >= self._until:
                # Whoever comes meanwhile is turned away: one may wait for a node that hangs, not all.
                self._until = self._clock() + REST
                return None
            return self._error

    def failed(self, error: ServerError) -> None:
        with self._lock:
            news, self._error, self._until = self._error is None, error, self._clock() + REST
        if news:
            log.warning("storage 'redis': %s; its pages are misses, and it is tried again every %g s", error, REST)

    def answered(self) -> None:
        if self._error is None:
            return
        with self._lock:
            self._error = None
        log.warning("storage 'redis': %s answers again", self._address)
