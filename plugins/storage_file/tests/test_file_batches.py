"""Batches: what is durable when, in which order pages are, and errors in the middle."""

import os
import time
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import numbered_key, numbers_there, page_of
from kvcache_storage_file import page_file, workers
from kvcache_storage_file.writer import Writer

NBYTES = 1000


def batch(numbers) -> tuple[list[str], list[bytes]]:
    keys = [numbered_key(number) for number in numbers]
    return keys, [page_of(key, NBYTES) for key in keys]


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the system that matters for a power failure, in order: (what, name)."""
    seen: list[tuple[str, str]] = []
    sync, replace = os.fsync, os.replace

    def fsync(fd):
        seen.append(("sync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        sync(fd)

    def rename(source, target):
        seen.append(("name", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    return seen


def test_durability_none_asks_for_nothing(root, calls):
    root.open().set(*batch(range(5)))
    assert [what for what, _ in calls] == ["name"] * 5


def test_durability_page_syncs_each_page_before_it_has_its_name_and_its_folder_after(root, calls):
    storage = root.open(durability="page", workers=1)
    storage.set(*batch(range(5)))
    calls.clear()
    storage.set(*batch(range(5)))
    assert len(calls) == 15
    for at, number in enumerate(range(5)):
        (first, temporary), name, folder = calls[3 * at : 3 * at + 3]
        assert first == "sync"
        assert temporary.endswith(".tmp")
        assert name == ("name", str(root.file(number)))
        assert folder == ("sync", str(root.file(number).parent))


def test_durability_batch_syncs_all_pages_then_names_them_then_syncs_each_folder_once(root, calls):
    storage = root.open(durability="batch")
    storage.set(*batch(range(100)))
    calls.clear()
    storage.set(*batch(range(100)))
    groups = (calls[: 64 * 2], range(64)), (calls[-36 * 2 :], range(64, 100))
    start = 0
    for _, numbers in groups:
        files = calls[start : start + len(numbers)]
        names = calls[start + len(numbers) :][: len(numbers)]
        folders = {str(root.file(number).parent) for number in numbers}
        synced = calls[start + 2 * len(numbers) :][: len(folders)]
        assert all(what == "sync" and path.endswith(".tmp") for what, path in files)
        assert {path for _, path in names} == {str(root.file(number)) for number in numbers}
        assert sorted(synced) == [("sync", folder) for folder in sorted(folders)]
        start += 2 * len(numbers) + len(folders)
    assert start == len(calls)
    assert numbers_there(storage, range(100), NBYTES) == list(range(100))


@pytest.mark.parametrize("durability", ["page", "batch"])
def test_folders_that_are_new_are_durable_too(root, calls, durability):
    root.open(durability=durability).set(*batch([1]))
    synced = {path for what, path in calls if what == "sync"}
    assert {str(root.path), str(root.path / "model"), str(root.path / "model" / "16"), str(root.file(1).parent)} <= synced


@pytest.mark.parametrize("durability", ["none", "page", "batch"])
def test_one_page_that_fails_keeps_no_other_from_being_stored(root, durability, monkeypatch):
    storage = root.open(durability=durability)
    replace = os.replace

    def refuse(source, target):
        if str(target) == str(root.file(2)):
            raise OSError(5, "Input/output error", target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="Input/output error") as caught:
        storage.set(*batch(range(5)))
    assert caught.value.__notes__ == ["1 of 5 pages were not stored"]
    assert numbers_there(storage, range(5), NBYTES) == [0, 1, 3, 4]
    assert root.temporaries() == []
    storage.check_integrity()
    monkeypatch.undo()
    storage.set(*batch(range(5)))
    assert numbers_there(storage, range(5), NBYTES) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("durability", ["page", "batch"])
def test_a_page_whose_sync_fails_gets_no_name(root, durability, monkeypatch):
    storage = root.open(durability=durability)

    def refuse(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        storage.set(*batch(range(3)))
    assert (root.pages(), root.temporaries()) == (set(), [])
    storage.check_integrity()


def test_pages_of_a_batch_are_ordered_whoever_writes_them(root, monkeypatch):
    monkeypatch.setattr(workers, "WAITED", 0.0)
    storage = root.open(workers=8)
    storage.set(*batch(range(50)))
    stamps = [root.file(number).stat().st_mtime_ns for number in range(50)]
    # The first is the last used: what is left of a prefix has to be its beginning.
    assert stamps == list(range(stamps[0], stamps[0] - 50, -1))
    assert stamps[0] <= time.time_ns()


class TestFaultsOfBatches(PlantedFaultTests):
    faults = (
        Fault(
            "a page has its name before it is on the disk",
            test_durability_page_syncs_each_page_before_it_has_its_name_and_its_folder_after,
            Replacement(Writer, "_write", "draft.sync()", "pass"),
        ),
        Fault(
            "the name is not durable",
            test_durability_page_syncs_each_page_before_it_has_its_name_and_its_folder_after,
            Replacement(Writer, "_write", "page_file.sync_folder(item.place.folder)", "pass"),
        ),
        Fault(
            "a batch syncs page by page",
            test_durability_batch_syncs_all_pages_then_names_them_then_syncs_each_folder_once,
            Replacement(Writer, "store", 'self._durability == "batch"', "False"),
        ),
        Fault(
            "the clock of the file system orders pages",
            test_pages_of_a_batch_are_ordered_whoever_writes_them,
            Replacement(page_file, "write", "os.utime(fd, ns=(used, used))", "pass"),
        ),
    )
