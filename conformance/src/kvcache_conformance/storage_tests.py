"""The tests that every storage backend passes. Subclass one of the two classes, and pytest finds the rest:

    class TestMyStorage(StorageBackendTests):          class TestMyStorage(InstalledStorageTests):
        capabilities = frozenset({"persistent"})           kind = "mine"

        def open_storage(self, place, scope):              def options(self, place):
            return MyStorage(place / "db", scope)              return {"path": str(place / "db")}

The second asks the installed plugin for everything, which also lets it open the store in other processes. Basic parts (`basic`,
`threads`, `machine`, `opening`) are never skipped; the Optional ones are switched by the declared capabilities, `buffers`
by what `get_into` answers, `raw` by overriding `raw`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from kvcache_conformance.prefix_cache_machine import not_reached
from kvcache_conformance.storage_basic_tests import BasicStorageTests
from kvcache_conformance.storage_buffer_tests import BufferStorageTests
from kvcache_conformance.storage_capacity_tests import CapacityStorageTests
from kvcache_conformance.storage_kit import StorageKit
from kvcache_conformance.storage_machine import expected_events, run_storage_machine
from kvcache_conformance.storage_opening_tests import OpeningStorageTests
from kvcache_conformance.storage_optional_tests import PersistentStorageTests, ScanStorageTests, SharedStorageTests
from kvcache_conformance.storage_processes import StorageOpener
from kvcache_conformance.storage_raw_tests import RawStorageTests
from kvcache_conformance.storage_thread_tests import ThreadStorageTests
from kvcache_conformance.storage_verdict import PART_NAMES
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope
from kvcache_core.registry.default import default_registry


class MachineStorageTests(StorageKit, ABC):
    """The state machine, in short."""

    def test_the_machine_finds_nothing(self, tmp_path: Path) -> None:
        events = run_storage_machine(self, tmp_path, examples=self.machine_examples, steps=30, seed=0)
        missing = not_reached(events, expected_events(self, tmp_path))
        assert not missing, f"the machine never came to: {', '.join(missing)}; raise machine_examples"


class AllStorageTests(
    BasicStorageTests,
    ThreadStorageTests,
    MachineStorageTests,
    OpeningStorageTests,
    PersistentStorageTests,
    SharedStorageTests,
    ScanStorageTests,
    CapacityStorageTests,
    BufferStorageTests,
    RawStorageTests,
    ABC,
):
    """Every part; how the backend is opened is left to the two classes below."""


class StorageBackendTests(AllStorageTests, ABC):
    """For a backend that the test makes itself. `capabilities`: what it declares."""

    capabilities: ClassVar[frozenset[str]] = frozenset()

    def declared(self) -> frozenset[str]:
        return self.capabilities


class InstalledStorageTests(AllStorageTests, ABC):
    """For an installed backend, by the `kind` it has in configuration files; opened as the core opens it."""

    kind: ClassVar[str]

    @abstractmethod
    def options(self, place: Path) -> Mapping[str, Any]:
        """What stands beside `kind` in a configuration, for a store in the folder `place`."""

    def declared(self) -> frozenset[str]:
        return default_registry().storage(self.kind).descriptor.capabilities

    def open_storage(self, place: Path, scope: StorageScope) -> HiCacheStorage:
        return self.opener(place, scope).open()

    def open_limited(self, place: Path, scope: StorageScope, max_bytes: int) -> HiCacheStorage:
        return StorageOpener(self.kind, {**self.options(place), "max_bytes": max_bytes}, scope).open()

    def opener(self, place: Path, scope: StorageScope) -> StorageOpener:
        return StorageOpener(self.kind, dict(self.options(place)), scope)


PARTS: Mapping[str, type[StorageKit]] = MappingProxyType(dict(zip(PART_NAMES, AllStorageTests.__bases__, strict=False)))
"""The parts of the kit by the names that a verdict calls them by."""
