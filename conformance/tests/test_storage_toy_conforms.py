"""The storage kit passes on the simplest correct backend: what it asks can be done."""

import pytest

from kvcache_conformance.prefix_cache_machine import not_reached
from kvcache_conformance.storage_machine import expected_events, run_storage_machine
from kvcache_conformance.storage_tests import StorageBackendTests
from kvcache_conformance.storage_toy import ToyDisk, ToyStorage, ToyStorageKit


class TestToyStorage(ToyStorageKit):
    """Everything declared."""


class TestToyStorageThatDeclaresNothing(StorageBackendTests):
    """A store that dies with its opener."""

    def open_storage(self, place, scope):
        return ToyStorage(ToyDisk(), scope)


def test_the_same_arguments_give_the_same_run(tmp_path):
    runs = [run_storage_machine(ToyStorageKit(), tmp_path, examples=5, steps=10, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_long_runs_of_the_storage_machine(tmp_path):
    kit = ToyStorageKit()
    events = run_storage_machine(kit, tmp_path, examples=500, steps=50, seed=1)
    assert not not_reached(events, expected_events(kit, tmp_path), at_least=100)
