"""A storage that cannot be opened, or whose tier cannot be made: an error at the start, and what is open already is closed."""

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.storage_toy import ToyDisk, ToyStorage
from kvcache_conformance.stored_scenarios import ROOM
from kvcache_core.errors import StorageError
from kvcache_unified_hicache import storage_tier
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.storage_tier import StorageTier


class ClosingStorage(ToyStorage):
    """Counts how often it is closed."""

    def __init__(self, options, scope):
        super().__init__(ToyDisk(), scope)
        self.closed = 0

    def close(self):
        self.closed += 1


def fails_to_open(stored, monkeypatch, owner, name, error):
    """Make the cache with a part of its storage that raises; gives the backend and the script of the guard."""
    opened, script = [], StorageScript()

    def backend(options, scope):
        opened.append(ClosingStorage(options, scope))
        return opened[-1]

    def fail(*arguments, **settings):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(type(error)):
            stored(ROOM, script, backend=backend)
    return opened[0], script


@pytest.mark.parametrize("error", [MemoryError("planted"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("owner", "name"), [(storage_tier, "self_test"), (StorageScript, "open_guard")], ids=["the self-test", "the guard"]
)
def test_a_backend_is_closed_when_its_guard_cannot_be_made(stored, monkeypatch, owner, name, error):
    backend, _ = fails_to_open(stored, monkeypatch, owner, name, error)
    assert backend.closed == 1


def test_a_guard_is_closed_when_what_uses_it_cannot_be_made(stored, monkeypatch):
    backend, script = fails_to_open(stored, monkeypatch, Fetches, "__init__", MemoryError("planted"))
    assert script.closed == 1
    assert backend.closed == 0  # by the guard, and this one is a script


def test_a_backend_that_does_not_work_stops_the_program_at_start(stored):
    """C5; the error names the field."""

    class ReadOnly:
        def __call__(self, options, scope):
            raise PermissionError("planted")

    with pytest.raises(StorageError, match=r"'script' cannot be opened: PermissionError: planted") as info:
        stored(ROOM, StorageScript(), backend=ReadOnly())
    assert info.value.path == ("hicache", "storage")


def test_a_factory_that_gives_nothing_stops_the_program_at_start(stored):
    with pytest.raises(StorageError, match=r"'script' cannot be opened: its factory gave None") as info:
        stored(ROOM, StorageScript(), backend=lambda options, scope: None)
    assert info.value.path == ("hicache", "storage")


@pytest.mark.parametrize(("persist_on", "read_only"), [("never", True), ("evict", False), ("insert", False)])
def test_where_nothing_is_written_the_backend_is_opened_so(stored, persist_on, read_only):
    scopes = []

    def backend(options, scope):
        scopes.append(scope)
        return ToyStorage(ToyDisk(), scope)

    stored(ROOM._replace(persist_on=persist_on), StorageScript(), backend=backend)
    assert [scope.read_only for scope in scopes] == [read_only]


def without_a_guard(stored, monkeypatch):
    test_a_backend_is_closed_when_its_guard_cannot_be_made(stored, monkeypatch, StorageScript, "open_guard", MemoryError())


class TestFaultsOfOpening(PlantedFaultTests):
    faults = (
        Fault(
            "nobody closes the backend",
            without_a_guard,
            Replacement(StorageTier, "__init__", "undo.callback(close_within, hicache.storage_timeout, backend)", "pass"),
        ),
        Fault(
            "opened to be written where nothing is",
            lambda stored: test_where_nothing_is_written_the_backend_is_opened_so(stored, "never", read_only=True),
            Replacement(StorageTier, "__init__", 'self.persist_on == "never"', "False"),
        ),
        Fault(
            "nobody closes the guard",
            test_a_guard_is_closed_when_what_uses_it_cannot_be_made,
            Replacement(StorageTier, "__init__", "undo.callback(self.guard.close, hicache.storage_timeout)", "pass"),
        ),
    )
