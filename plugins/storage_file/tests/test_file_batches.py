"""Batches: durability, parallel work, errors in the middle, and the end of it all (FAULTS S9)."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import numbered_key, numbers_there, page_of, store_numbered
from kvcache_storage_file import member, page_file, workers
from kvcache_storage_file.session import Session
from kvcache_storage_file.workers import Workers
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
    assert stamps == list(range(stamps[0], stamps[0] + 50))


def test_helpers_join_when_an_item_waits(monkeypatch):
    """All four wait for each other, so one thread alone would never come back."""
    monkeypatch.setattr(workers, "WAITED", -1.0)
    together = threading.Barrier(4)
    pool = Workers(3)

    def work(number: int) -> None:
        if number:
            together.wait(60)

    assert pool.each(5, work) == []
    pool.close(10)


def test_what_is_ready_at_once_starts_no_thread(monkeypatch):
    monkeypatch.setattr(workers, "WAITED", 60.0)
    before = threading.active_count()
    pool, seen = Workers(3), []
    assert pool.each(3, lambda number: seen.append((number, threading.current_thread()))) == []
    assert seen == [(number, threading.main_thread()) for number in range(3)]
    assert threading.active_count() == before
    assert pool.each(0, seen.append) == []


def test_a_helper_that_meets_an_exception_goes_on(monkeypatch):
    monkeypatch.setattr(workers, "WAITED", -1.0)
    pool = Workers(2)

    def work(number: int) -> None:
        if number % 2:
            raise OSError(f"number {number}")

    for _ in range(20):
        errors = pool.each(6, work)
        assert sorted(str(error) for error in errors) == ["number 1", "number 3", "number 5"]
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvcache-file")]
    assert len(names) == 2
    pool.close(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-file")]


def test_close_ends_every_thread_leaves_nothing_behind_and_may_be_repeated(root, monkeypatch):
    monkeypatch.setattr(workers, "WAITED", -1.0)
    storage = root.open(max_bytes=10**6)
    storage.set(*batch(range(20)))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    storage.close()
    storage.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-file")]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 3
    assert sorted(path.name for path in (root.path / ".kvcache").iterdir()) == ["lock", "usage"]
    for call in (storage.exists, storage.get, storage.delete, lambda keys: storage.set(keys, [])):
        with pytest.raises(ValueError, match="closed"):
            call([])


def test_close_during_a_write_waits_for_it(root, monkeypatch):
    """Descriptors are closed by the last call that uses them: closed too early, they would soon be another file's."""
    storage = root.open(max_bytes=10**6)
    inside, go_on = threading.Event(), threading.Event()
    replace = os.replace

    def slow(source, target):
        inside.set()
        assert go_on.wait(60)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    writer = threading.Thread(target=store_numbered, args=(storage, [1], NBYTES))
    writer.start()
    assert inside.wait(60)
    closer = threading.Thread(target=storage.close)
    closer.start()
    go_on.set()
    writer.join(60)
    closer.join(60)
    monkeypatch.undo()
    reopened = root.open(max_bytes=10**6)
    assert numbers_there(reopened, [1], NBYTES) == [1]
    reopened.check_integrity()


def test_it_is_not_used_after_a_fork(root):
    storage = root.open()
    store_numbered(storage, [1], NBYTES)
    storage._process += 1  # as it looks to a child
    with pytest.raises(RuntimeError, match="open it again after a fork"):
        storage.get([numbered_key(1)])
    storage._process -= 1


HANGS = """
import os, sys, threading
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file import workers
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import make

workers.WAITED = -1.0
store = make(FileOptions(path=sys.argv[1], min_free_bytes=0), StorageScope("model", 16))
main, hung, opened = threading.main_thread(), threading.Event(), os.open
def hang(*args, **kwargs):
    if threading.current_thread() is not main:
        hung.set()
        threading.Event().wait()
    hung.wait()
    return opened(*args, **kwargs)
os.open = hang
threading.Thread(target=store.get, args=([f"{n:064x}" for n in range(8)],), daemon=True).start()
hung.wait()
store.close()
print("closed", flush=True)
"""


def test_a_file_system_that_hangs_keeps_neither_close_nor_the_interpreter(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path / "root")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "closed\n"


def test_another_openers_unfinished_pages_are_not_swept(root):
    writer = root.open()
    temporary = Path(writer._opened._session.member.temporary())
    temporary.write_bytes(b"half a page")
    other = root.open()
    assert other.temporaries_swept == 0
    assert temporary.exists()


def test_what_a_killed_process_left_is_counted_and_swept(root):
    root.open().close()
    for name in ("0123456789abcdef", "fedcba9876543210"):
        folder = root.path / ".kvcache" / name
        folder.mkdir()
        (folder / "lock").touch()
        (folder / "0.tmp").write_bytes(b"half a page")
        (folder / "1.tmp").write_bytes(b"")
    (root.path / ".kvcache" / "killed-before-its-lock").mkdir()
    storage = root.open()
    assert storage.temporaries_swept == 4
    assert root.temporaries() == []
    assert len([path for path in (root.path / ".kvcache").iterdir() if path.is_dir()]) == 1
    assert root.open().temporaries_swept == 0


class TestPlantedFaults(PlantedFaultTests):
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
        Fault(
            "the living are swept",
            test_another_openers_unfinished_pages_are_not_swept,
            Replacement(member, "_unowned", "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),
        ),
        Fault(
            "the dead are not swept",
            test_what_a_killed_process_left_is_counted_and_swept,
            Replacement(Session, "__init__", "list(sweep(private))", "[]"),
        ),
        Fault(
            "what a helper met is lost",
            test_a_helper_that_meets_an_exception_goes_on,
            Replacement(workers._Job, "do_one", "self.errors.append(error)", "pass"),
        ),
    )
