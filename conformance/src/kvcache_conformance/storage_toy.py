"""The simplest storage that passes every part of the kit: a dictionary that openers share. The kit's tests plant faults in it."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, final

from kvcache_conformance.storage_kit import CAPABILITIES, RawStorage
from kvcache_conformance.storage_tests import StorageBackendTests
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, StoredPage, Value

Place = tuple[str, int, str]


@final
class ToyDisk:
    """What outlives an opener. `pages` is in the order of the last use, and `used` has its times; use them under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pages: dict[Place, bytes] = {}
        self.used: dict[Place, float] = {}


class ToyStorage(HiCacheStorage):
    """One opener. `max_bytes`: of the values of all scopes; None for no limit."""

    def __init__(self, disk: ToyDisk, scope: StorageScope, max_bytes: int | None = None) -> None:
        self.disk = disk
        self.scope = scope
        self.max_bytes = max_bytes

    def exists(self, keys: Sequence[str]) -> list[bool]:
        with self.disk.lock:
            return [self.place(key) in self.disk.pages for key in keys]

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        with self.disk.lock:
            return [self.take(self.place(key)) for key in keys]

    def get_into(self, keys: Sequence[str], buffers: Sequence[Sequence[memoryview]]) -> list[int | None] | None:
        return [self.fill(value, places) for value, places in zip(self.get(keys), buffers, strict=True)]

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self.check_writable()
        for key, value in zip(keys, values, strict=True):
            with self.disk.lock:
                self.put(self.place(key), bytes(value))

    def delete(self, keys: Sequence[str]) -> None:
        self.check_writable()
        with self.disk.lock:
            for key in keys:
                self.disk.pages.pop(self.place(key), None)

    def scan(self) -> Iterator[StoredPage]:
        with self.disk.lock:
            pages = [(place, len(value), self.disk.used.get(place, 0.0)) for place, value in self.disk.pages.items()]
        for (model_id, page_size, key), nbytes, used in pages:
            yield StoredPage(key, model_id, page_size, nbytes, used)

    def check_writable(self) -> None:
        if self.scope.read_only:
            raise PermissionError("this storage was opened to be read only")

    def place(self, key: str) -> Place:
        return self.scope.model_id, self.scope.page_size, key

    def take(self, place: Place) -> bytes | None:
        """One value, which is the newest from now on; the caller holds the lock."""
        value = self.disk.pages.get(place)
        if value is not None and not self.scope.read_only:
            self.disk.pages[place] = self.disk.pages.pop(place)
            self.disk.used[place] = time.time()
        return value

    def fill(self, value: bytes | None, places: Sequence[memoryview]) -> int | None:
        """Write one value to its buffers if it is as long as they are together; its length."""
        if value is not None and len(value) == sum(map(len, places)):
            at = 0
            for place in places:
                place[:] = value[at : at + len(place)]
                at += len(place)
        return None if value is None else len(value)

    def put(self, place: Place, value: bytes) -> None:
        """Store one value as the newest, and make room first; the caller holds the lock."""
        pages = self.disk.pages
        pages.pop(place, None)
        if self.max_bytes is not None:
            if len(value) > self.max_bytes:
                return
            while sum(map(len, pages.values())) + len(value) > self.max_bytes:
                del pages[next(iter(pages))]
        pages[place] = value
        self.disk.used[place] = time.time()


@final
class ToyRaw(RawStorage):
    """The dictionary itself."""

    def __init__(self, disk: ToyDisk, scope: StorageScope) -> None:
        self._disk = disk
        self._scope = (scope.model_id, scope.page_size)

    def read(self, key: str) -> bytes | None:
        return self._disk.pages.get((*self._scope, key))

    def write(self, key: str, value: bytes) -> None:
        self._disk.pages[(*self._scope, key)] = value

    def remove(self, key: str) -> None:
        del self._disk.pages[(*self._scope, key)]


class ToyStorageKit(StorageBackendTests):
    """The kit on ToyStorage, with everything declared. `storage`: a faulty variant, to see the kit notice it."""

    capabilities = frozenset(CAPABILITIES)
    closing_seconds = 0.1
    storage: ClassVar[type[ToyStorage]] = ToyStorage

    @cached_property
    def _disks(self) -> dict[Path, ToyDisk]:
        return defaultdict(ToyDisk)

    def open_storage(self, place: Path, scope: StorageScope) -> HiCacheStorage:
        return self.storage(self._disks[place], scope)

    def open_limited(self, place: Path, scope: StorageScope, max_bytes: int) -> HiCacheStorage:
        return self.storage(self._disks[place], scope, max_bytes)

    def raw(self, place: Path, scope: StorageScope) -> RawStorage:
        return ToyRaw(self._disks[place], scope)
