"""What the cache asks of whoever moves pages between device and host: the seam between policy and copies.

`HiCacheController` is the real one; tests script another through `deps.controller`. It speaks of indices and never of nodes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from kvcache_core.contracts.results import Indices

Agree = Callable[[Sequence[int]], Sequence[int]]
"""`CacheDeps.agree`: the element-wise minimum over ranks."""

OnCommit = Callable[[bool], None]
"""Called exactly once, on the owner thread inside `poll` (or `cancel`), with whether the copy is whole."""


class Transfer(ABC):
    """The future of one copy of one component. Sources are captured at dispatch (device) or in the call (host)."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Committed: `on_commit` was called."""

    @property
    @abstractmethod
    def dispatched(self) -> bool:
        """Whether anything of it was dispatched. Ranks may differ in it: each assembles a load's source at its own pace."""

    @abstractmethod
    def cancel(self) -> bool:
        """Drop a copy that was not dispatched yet; `on_commit(False)` is called then, and True returned. False: too late.

        Asks no other rank: whoever calls it knows that all of them do.
        """


class TransferController(Protocol):
    """Sole owner of transfers between L1 and L2. All methods are called on the owner thread.

    Commits happen in `poll`, in the order of submission for each direction.
    """

    def has_room(self, component: str, n: int) -> bool:
        """Whether `n` more indices may be in flight."""
        ...

    def reserve(self, component: str, n: int) -> Indices | None:
        """`n` host slots, the caller's from now on, evicting from the host on shortage; None when even that does not give
        them."""
        ...

    def write(self, host_indices: Indices, device_indices: Indices, component: str, on_commit: OnCommit) -> Transfer:
        """Copy device pages to host slots, one to one by position (L1 -> L2)."""
        ...

    def load(self, device_indices: Indices, host_indices: Indices, component: str, on_commit: OnCommit) -> Transfer:
        """Copy host slots to device pages, one to one by position (L2 -> L1). The slots may be freed after the call.

        Raises when the source cannot be captured; nothing of the load stays then, and `on_commit` is never called.
        """
        ...

    def poll(self) -> int:
        """Commit what is complete; returns how many transfers."""
        ...

    def close(self) -> None:
        """End threads; what is in flight is dropped without a commit. Idempotent."""
        ...
