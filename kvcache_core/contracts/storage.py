"""L3: a store of opaque pages. It sees bytes and keys, never a tree, a device or a tensor."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvcache_core.errors import KVCacheError

Value = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StorageScope:
    """What one cache stores pages of. A backend may use it to lay out folders; identity is already in every key.

    `read_only`: somebody looks (`kvcache storage inspect`) and the store is to stay as it is: only `exists`, `get`, `scan` and
    `close` are called. A backend refuses `set` and `delete` then, with any exception. One with a limit removes nothing because of
    it; one that makes, counts or tidies anything when it is opened leaves that out, and raises where there is no store.
    Not a part of what a scope is: two that differ in it alone are equal, and have the same pages.
    """

    model_id: str
    page_size: int
    read_only: bool = field(default=False, compare=False)


class StoredPage(NamedTuple):
    """One page as `scan` finds it. `nbytes`: of the value. `used`: when it was last written or read, in seconds since the epoch,
    as exactly as the store keeps it."""

    key: str
    model_id: str
    page_size: int
    nbytes: int
    used: float


class NotAllStoredError(KVCacheError):
    """Raised by `set` when some pages of a batch are stored and others are not: one server of several is gone, a file in the way.

    `missing`: exactly the keys that are not stored, so never none; all others of the batch are. It says that the backend works:
    one that is full or gone as a whole raises something else.

    What to do: look at the server or the file that its text names; the cache goes on, and computes what was not stored.
    """

    def __init__(self, text: str, missing: Collection[str]) -> None:
        super().__init__(text)
        self.missing = frozenset(missing)


class HiCacheStorage(ABC):
    """Batch access to pages by key. Keys are 64 lowercase hex digits. A batch may be empty, and name a key more than once.

    A call may name a few thousand keys (the cache sends up to 1,024), a value may have tens of megabytes, and the values of a
    batch together more: a backend whose server takes less at a time divides the call itself, and one that cannot store a value
    says so with an exception. Every memoryview is contiguous, of one dimension and of the format "B".

    A backend only moves bytes: deadlines, batching, circuit breaking and verification belong to the guard around it. It may
    raise and it may lose pages; it must not hand out bytes under a key they were not set with. Called from several threads.
    """

    @abstractmethod
    def exists(self, keys: Sequence[str]) -> list[bool]:
        """One answer per key, in order. Neither pins nor refreshes a page."""

    @abstractmethod
    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """One value per key, in order; None for a page that is not there."""

    def get_into(self, keys: Sequence[str], buffers: Sequence[Sequence[memoryview]]) -> list[int | None] | None:
        """`get` without new memory: the value of each key goes to the writable buffers of the same place, which are filled one
        after another. One answer per key, in order: how many bytes the value has, None for a page that is not there.

        A key has any number of buffers: none where no bytes are expected, or one for each array of each layer, which may be more
        than a system call takes (IOV_MAX, 1,024 on Linux). They need not lie side by side, nothing outside of them is written,
        and a key that is named twice has other buffers each time, all of which are filled.

        Of a value that is longer than its buffers, or shorter, anything may have been written: its length tells, and whoever
        asked reads it with `get`. The buffers are the caller's again when this returns, and nothing is written to them later.

        Optional: None instead of a list (the default) says that this backend cannot do it. It is about the backend, not about a
        call: one that has answered with a list does so from then on, for an empty batch too.
        """
        return None

    @abstractmethod
    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Store each value under its key; the last writer wins, within a batch too. A reader sees a whole value or none.

        Values may be empty; they are the caller's again when this returns. Of a batch that is not stored whole it may be said
        with NotAllStoredError what is; after any other exception nothing of it counts as stored.
        """

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove pages; an absent key is not an error."""

    def scan(self) -> Iterator[StoredPage]:
        """Every page of the whole store, also of other models and page sizes, in no order; for `kvcache storage`. Optional:
        a backend that can do it declares the capability "scan". Pages that come and go meanwhile may be missed or named.

        Raises NotImplementedError where the backend cannot list what it holds.
        """
        raise NotImplementedError("this storage backend cannot list its pages")

    def close(self) -> None:
        """Release connections and threads. Idempotent."""
