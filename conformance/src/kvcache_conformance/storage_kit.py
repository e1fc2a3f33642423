"""What the groups of storage tests share: how a backend is opened, what it declares, and raw access behind its back.

Subclass `StorageBackendTests` or `InstalledStorageTests` of `storage_tests`, not what is here. It knows no backend.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import pytest

from kvcache_conformance.storage_bench import StorageBench
from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "persistent": "pages survive closing and opening again, also in another process",
        "shared": "several openers at once, also in several processes, see each other's pages",
        "scan": "`scan` names every page of the whole store",
        "capacity": "the option `max_bytes` bounds the bytes that are kept, and what was used (written or read) least recently "
        "goes first",
    }
)
"""What a `StorageBackendDescriptor` may declare, and what that promises. Each has a part of the kit of the same name."""


class RawStorage(ABC):
    """The store behind a backend, reached without the backend: what the disk or the server really has.

    It works in the scope it was made for, while the backend is open.
    """

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The value as it is stored; None where there is none."""

    @abstractmethod
    def write(self, key: str, value: bytes) -> None:
        """Store a value, over whatever is there."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Take a value away that is there."""


class StorageKit(ABC):
    """How a backend gets under test. `machine_examples`: how many runs of the state machine one test makes. `closing_seconds`:
    how long threads and connections may go on ending after `close`."""

    machine_examples: ClassVar[int] = 15
    closing_seconds: ClassVar[float] = 3.0

    @abstractmethod
    def declared(self) -> frozenset[str]:
        """The capabilities whose parts it has to pass."""

    @abstractmethod
    def open_storage(self, place: Path, scope: StorageScope) -> HiCacheStorage:
        """Open the store that belongs to `place`, an existing folder: the same place is the same store, another is another."""

    def open_limited(self, place: Path, scope: StorageScope, max_bytes: int) -> HiCacheStorage:
        """The same with a limit on the bytes kept; only needed for "capacity"."""
        raise NotImplementedError("a backend that declares 'capacity' is opened with a limit: override open_limited")

    def raw(self, place: Path, scope: StorageScope) -> RawStorage | None:
        """Access that bypasses the backend; None leaves out the tests that need it."""
        return None

    def opener(self, place: Path, scope: StorageScope) -> StorageOpener | None:
        """What another process opens the store with; None leaves out the tests that need one."""
        return None

    def part(self, name: str) -> None:
        """Skip the running test unless the backend declares the capability `name`."""
        if name not in self.declared():
            pytest.skip(f"the backend does not declare the capability '{name}'")

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[StorageBench]:
        """Where a test works: an empty place of its own; what it opens there is closed at its end."""
        with StorageBench(self, tmp_path) as bench:
            yield bench
