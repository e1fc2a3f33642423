"""Receipts: what a caller holds while data must stay, and while a transfer runs. A cache makes them and ends them."""

from abc import ABC, abstractmethod
from enum import Enum

from kvcache_core.contracts.results import Segment


class Lock(ABC):
    """A receipt of `lock_ref`, used once. While it lives, what it covers is neither evicted nor deleted.

    End it with exactly one `unlock_ref` (or `Ticket.cancel`, for a ticket's lock). A second one raises `LockError`.
    """

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens covered, page aligned."""

    @abstractmethod
    def segment(self, component: str) -> Segment:
        """The covered indices of one component. The indices are a copy that the caller may keep after the unlock, but
        whose pages it must not read any more then. For a window it starts at the page of the first position still needed;
        for a component with one unit at a node's end it holds one index.

        Raises:
            KeyError: the cache has no such component.
            LockError: the lock, or this component's part of it, was already released.
        """


class Refused(Enum):
    """Why `load` or `prefetch` started nothing. A refusal is a miss, never an error."""

    NO_TIER = "this cache has no such tier"
    NOTHING_TO_DO = "everything usable is already there"
    STALE = "the match went stale; match again"
    NO_ROOM = "the destination has no room even after eviction"
    BUSY = "too many bytes in flight"
    UNAVAILABLE = "the storage is unavailable"


class Ticket(ABC):
    """A transfer under way. It is finished by `poll` on the owner thread; the caller only looks.

    For `load`, the caller owns `lock` from the start and ends it by exactly one of `unlock_ref` or `cancel`, also when `ok`
    is False. A `prefetch` ticket has no lock.
    """

    @property
    @abstractmethod
    def lock(self) -> Lock | None: ...

    @property
    @abstractmethod
    def done(self) -> bool: ...

    @property
    @abstractmethod
    def ok(self) -> bool:
        """Whether the whole requested length is usable now. False until `done`."""

    @property
    def span(self) -> tuple[int, int]:
        """For `prefetch`, once done: the token positions [start, end) that came from storage for it; (0, 0) when none did."""
        return (0, 0)

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Poll on the owner thread until done or `timeout` seconds have passed; returns `done`."""

    @abstractmethod
    def cancel(self) -> None:
        """Withdraw interest and release the lock. The destination belongs to the operation until it is committed."""
