"""The storage kit passes on the simplest correct backend: what it asks can be done."""

from pathlib import Path

import pytest

from kvcache_conformance.prefix_cache_machine import not_reached
from kvcache_conformance.storage_kit import CAPABILITIES
from kvcache_conformance.storage_machine import EVENTS, run_storage_machine
from kvcache_conformance.storage_tests import StorageBackendTests
from kvcache_conformance.storage_toy import ToyDisk, ToyRaw, ToyStorage


class TestToyStorage(StorageBackendTests):
    """Everything declared."""

    capabilities = frozenset(CAPABILITIES)

    @pytest.fixture(autouse=True)
    def disks(self):
        self.disk_of: dict[Path, ToyDisk] = {}

    def disk(self, place):
        return self.disk_of.setdefault(place, ToyDisk())

    def open_storage(self, place, scope):
        return ToyStorage(self.disk(place), scope)

    def open_limited(self, place, scope, max_bytes):
        return ToyStorage(self.disk(place), scope, max_bytes)

    def raw(self, place, scope):
        return ToyRaw(self.disk(place), scope)


class TestToyStorageThatDeclaresNothing(StorageBackendTests):
    """A store that dies with its opener."""

    def open_storage(self, place, scope):
        return ToyStorage(ToyDisk(), scope)


class OneDisk(TestToyStorage):
    """For runs outside of pytest's classes."""

    __test__ = False

    def __init__(self):
        self.disk_of = {}


def test_the_same_arguments_give_the_same_run():
    runs = [run_storage_machine(OneDisk(), examples=5, steps=10, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.slow
def test_long_runs_of_the_storage_machine():
    events = run_storage_machine(OneDisk(), examples=500, steps=50, seed=1)
    assert not not_reached(events, [*EVENTS, "opened again", "second opener", "damaged"], at_least=100)
