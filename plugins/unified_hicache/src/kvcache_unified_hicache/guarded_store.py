"""What the flows ask of whoever stands in front of the storage backend. `StorageGuard` is the real one; tests script another."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kvcache_core.contracts.storage import HiCacheStorage, Value
from kvcache_unified_hicache.storage.breaker import GuardState
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.room import Room
from kvcache_unified_hicache.storage.workers import Side

T = TypeVar("T")


class GuardedStore(Protocol):
    """A request is taken (True), and its `on_done` is called exactly once inside `poll`; or it is refused (False), and nothing is
    called. Everything here is called on the owner thread."""

    @property
    def state(self) -> GuardState:
        """For reports: the worse one of reading and writing. What is refused because of it, only `refuses` tells."""
        ...

    @property
    def idle(self) -> bool:
        """No request is under way."""
        ...

    def refuses(self, side: Side) -> bool:
        """Whether a refusal means that the backend is left alone (`exists` and `fetch` read, `store` writes), and not that too
        much is under way. A full disk must not cost the pages that can be read."""
        ...

    def exists(self, keys: Sequence[str], on_done: Callable[[list[bool]], None]) -> bool: ...

    def store(
        self,
        keys: Sequence[str],
        nbytes_each: int,
        make: Callable[[], Sequence[Value]],
        on_done: Callable[[list[bool]], None],
    ) -> bool:
        """`make` runs on a worker and gives the sealed value of each key."""
        ...

    def fetch(
        self,
        keys: Sequence[str],
        frame: PageFrame,
        room: Room[T],
        on_done: Callable[[T | None], None],
    ) -> bool:
        """`then` runs on a worker with a verified payload or None for each key."""
        ...

    def poll(self) -> int: ...

    def wait(self, timeout: float) -> None: ...

    def close(self, timeout: float) -> None: ...


OpenGuard = Callable[[HiCacheStorage], GuardedStore]
