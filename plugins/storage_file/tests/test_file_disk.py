"""Disks that fill, roots that cannot be used, and roots that go away (FAULTS S2, S4, C5)."""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import expect_stored, largest_page, numbered_key, numbers_there, page_of, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_file import free_space, page_file
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.draft import Draft
from kvcache_storage_file.free_space import FreeSpace
from kvcache_storage_file.reader import Reader
from kvcache_storage_file.room import Room
from kvcache_storage_file.root import Root
from kvcache_storage_file.session import Session
from kvcache_storage_file.storage import make

NBYTES = 100_000
MIB = 2**20


def free(root) -> int:
    found = os.statvfs(root.path)
    return found.f_bavail * found.f_frsize


def test_a_disk_that_fills_during_a_write_leaves_no_torn_page_and_writes_resume(small_disk):
    """Somebody else fills the disk; there is nothing of ours to remove."""
    root = small_disk(4 * MIB)
    storage = root.open()
    other = root.path.parent / "other"
    other.write_bytes(bytes(free(root) - 64 * 1024))
    with pytest.raises(OSError, match="No space left") as caught:
        store_numbered(storage, [1], NBYTES)
    assert not isinstance(caught.value, StorageError)
    assert (root.pages(), root.temporaries()) == (set(), [])
    storage.check_integrity()
    other.unlink()
    store_numbered(storage, [1, 2], NBYTES)
    assert numbers_there(storage, [1, 2], NBYTES) == [1, 2]
    storage.check_integrity()


def test_a_part_of_a_page_that_fits_is_no_page(small_disk, monkeypatch):
    """The system takes a part of the bytes and fails with the rest. The look at the free space is made to see nothing of it."""
    root = small_disk(4 * MIB)
    storage = root.open()
    monkeypatch.setattr(free_space.FreeSpace, "free", lambda self: 10**12)
    (root.path.parent / "other").write_bytes(bytes(free(root) - 64 * 1024))
    with pytest.raises(OSError, match="No space left"):
        store_numbered(storage, [1], NBYTES)
    assert (root.pages(), root.temporaries()) == (set(), [])
    assert storage.exists([numbered_key(1)]) == [False]
    storage.check_integrity()


def test_a_full_disk_is_met_with_our_own_oldest_pages(small_disk, monkeypatch):
    root = small_disk(4 * MIB)
    storage = root.open()
    monkeypatch.setattr(free_space.FreeSpace, "free", lambda self: 10**12)
    expect_stored(storage, range(100), NBYTES)
    left = numbers_there(storage, range(100), NBYTES)
    assert left == list(range(100 - len(left), 100))
    assert len(left) > 30
    storage.check_integrity()


def test_the_floor_under_the_free_space_holds(small_disk):
    root = small_disk(8 * MIB)
    storage = root.open(min_free_bytes=3 * MIB)
    for number in range(150):
        store_numbered(storage, [number], NBYTES)
        assert free(root) >= 3 * MIB
    left = numbers_there(storage, range(150), NBYTES)
    assert left == list(range(150 - len(left), 150))
    assert free(root) < 3 * MIB + 4 * NBYTES
    storage.check_integrity()


def test_the_floor_is_5_percent_unless_told_and_at_most_10_gib(small_disk, monkeypatch):
    root = small_disk(8 * MIB)
    storage = root.open(min_free_bytes=None)
    store_numbered(storage, range(150), NBYTES)
    assert 8 * MIB // 20 <= free(root) < 8 * MIB // 20 + 4 * NBYTES
    huge = os.statvfs_result((4096, 4096, 2**40, 2**40, 2**40, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: huge)
    assert free_space.FreeSpace(str(root.path), None).floor == 10 * 2**30


def test_what_others_put_on_the_disk_is_made_up_for_little_by_little(small_disk):
    """Below the floor every page costs two: the cache gives way, but one write does not empty it."""
    root = small_disk(8 * MIB)
    storage = root.open(min_free_bytes=2 * MIB)
    store_numbered(storage, range(40), NBYTES)
    before = len(numbers_there(storage, range(40), NBYTES))
    (root.path.parent / "other").write_bytes(bytes(free(root) - MIB))
    store_numbered(storage, [100], NBYTES)
    assert before - 3 <= len(numbers_there(storage, range(40), NBYTES)) <= before - 2
    store_numbered(storage, range(101, 120), NBYTES)
    assert free(root) >= 2 * MIB
    storage.check_integrity()


def test_a_batch_on_a_full_disk_stores_what_it_can_and_says_what_it_could_not(small_disk):
    root = small_disk(4 * MIB)
    storage = root.open(max_bytes=10 * NBYTES)
    keys = [numbered_key(number) for number in range(3)]
    with pytest.raises(OSError, match="larger than max_bytes") as caught:
        storage.set(keys, [page_of(keys[0], NBYTES), bytes(11 * NBYTES), page_of(keys[2], NBYTES)])
    assert caught.value.__notes__ == ["1 of 3 pages were not stored"]
    assert numbers_there(storage, range(3), NBYTES) == [0, 2]
    storage.check_integrity()


def test_a_root_that_is_missing_is_made(tmp_path):
    storage = make(FileOptions(path=str(tmp_path / "a" / "b"), min_free_bytes=0), StorageScope("model", 16))
    store_numbered(storage, [1], NBYTES)
    assert (tmp_path / "a" / "b" / "model" / "16").is_dir()
    storage.close()


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_root_that_is_a_file_stops_the_start(tmp_path, below):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match="give another one with 'path'") as caught:
        make(FileOptions(path=f"{tmp_path}/file{below}"), StorageScope("model", 16))
    assert caught.value.path == ("hicache", "storage")
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_home_folder_that_is_nobodys_stops_the_start():
    with pytest.raises(StorageError, match="home directory"):
        make(FileOptions(path="~nobody-of-this-name/pages"), StorageScope("model", 16))


def test_a_root_that_is_read_only_stops_the_start(small_disk):
    root = small_disk(MIB)
    done = subprocess.run(["mount", "-o", "remount,ro", str(root.path.parent)], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("cannot mount read-only here")
    with pytest.raises(StorageError, match="Read-only file system"):
        root.open()


AS_NOBODY = """
import os, sys
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import make

root, pages = sys.argv[1:]
def open_it(): return make(FileOptions(path=root, min_free_bytes=0), StorageScope("model", 16))
os.mkdir(root)
key = "ab" * 32
if os.geteuid() == 0:
    os.chown(root, 65534, 65534)
    os.setegid(65534)
    os.seteuid(65534)
os.chmod(root, 0o500)
try:
    open_it()
except StorageError as error:
    assert "Permission denied" in str(error), error
else:
    raise AssertionError("no error at the start")
os.chmod(root, 0o700)
store = open_it()
store.set([key], [b"page"])
os.chmod(pages, 0o000)
for call in (lambda: store.get([key]), lambda: store.exists([key]), lambda: store.set([key], [b"new"])):
    try:
        call()
    except PermissionError:
        continue
    raise AssertionError("no error while running")
os.chmod(pages, 0o700)
store.check_integrity()
assert store.get([key]) == [b"page"]
store.set([key], [b"new"])
assert store.get([key]) == [b"new"]
print("done")
"""


def test_a_root_without_permission_is_an_error_at_the_start_and_while_running(tmp_path):
    """In a process that is not root: root may do everything."""
    tmp_path.chmod(0o755)
    for parent in itertools.takewhile(lambda folder: folder != Path(tempfile.gettempdir()), tmp_path.parents):
        parent.chmod(0o755)
    command = [sys.executable, "-c", textwrap.dedent(AS_NOBODY), str(tmp_path / "root"), str(tmp_path / "root" / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr


def test_a_root_that_is_removed_while_it_is_used_is_made_again(root):
    storage, other = root.open(max_bytes=10 * largest_page(NBYTES)), root.open()
    store_numbered(storage, range(5), NBYTES)
    shutil.rmtree(root.path)
    assert numbers_there(storage, range(5), NBYTES) == []
    assert storage.exists([numbered_key(1)]) == [False]
    expect_stored(storage, range(20), NBYTES)
    store_numbered(other, [100], NBYTES)
    left = numbers_there(storage, [*range(20), 100], NBYTES)
    assert left[-2:] == [19, 100]
    store_numbered(storage, [21], NBYTES)
    assert root.bytes() <= 10 * largest_page(NBYTES)
    for each in (storage, other):
        each.check_integrity()
        each.close()
    assert [path.name for path in (root.path / ".kvcache").iterdir() if path.is_dir()] == []


def test_folders_that_are_removed_while_they_are_used_are_made_again(root):
    storage = root.open()
    store_numbered(storage, range(5), NBYTES)
    shutil.rmtree(root.path / "model")
    expect_stored(storage, range(5), NBYTES)
    assert numbers_there(storage, range(5), NBYTES) == list(range(5))
    assert root.temporaries() == []


def test_a_root_that_becomes_a_file_fails_every_call_until_it_is_a_folder_again(root):
    storage = root.open()
    store_numbered(storage, range(3), NBYTES)
    shutil.rmtree(root.path)
    root.path.write_text("in the way")
    for call in (
        lambda: storage.get([numbered_key(1)]),
        lambda: storage.exists([numbered_key(1)]),
        lambda: store_numbered(storage, [1], 9),
    ):
        with pytest.raises(OSError, match=r"Not a directory|File exists"):
            call()
    root.path.unlink()
    store_numbered(storage, range(3), NBYTES)
    assert numbers_there(storage, range(3), NBYTES) == [0, 1, 2]
    storage.check_integrity()


def test_nothing_is_written_below_a_mount_point_whose_disk_has_gone(small_disk):
    """Neither where the root was the mount point, nor where it was a folder on the disk, which is not made again."""
    for name, below in (("one", "."), ("two", "a/b")):
        root = small_disk(4 * MIB, name)
        place = root.path.parent
        root.path = place / below
        storage = root.open()
        store_numbered(storage, range(3), NBYTES)
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        with pytest.raises(OSError, match="another file system"):
            store_numbered(storage, [7], NBYTES)
        assert list(place.iterdir()) == []
        assert numbers_there(storage, range(3), NBYTES) == []


@pytest.mark.parametrize("bad", ["folder", "unreadable"])
def test_a_bad_file_among_good_ones_is_absent_and_alone_it_is_an_error(root, bad, monkeypatch):
    storage = root.open()
    store_numbered(storage, range(3), NBYTES)
    if bad == "folder":
        root.file(1).unlink()
        root.file(1).mkdir()
    else:
        opened = os.open

        def refuse(path, *args, **kwargs):
            if str(path) == str(root.file(1)):
                raise OSError(5, "Input/output error", path)
            return opened(path, *args, **kwargs)

        monkeypatch.setattr(os, "open", refuse)
    assert numbers_there(storage, range(3), NBYTES) == [0, 2]
    with pytest.raises(OSError, match=r"not a regular file|Input/output error"):
        storage.get([numbered_key(1)])
    assert storage.exists([numbered_key(number) for number in range(3)]) == [True, bad != "folder", True]


def test_a_bad_file_keeps_no_other_from_being_read(root):
    storage = root.open()
    store_numbered(storage, range(3), NBYTES)
    root.file(1).unlink()
    root.file(1).mkdir()
    try:
        assert numbers_there(storage, range(3), NBYTES) == [0, 2]
    except OSError as error:
        pytest.fail(f"one bad file failed the batch: {error}")


class TestPlantedFaults(PlantedFaultTests):
    faults = (
        Fault(
            "a part of a page is a page",
            test_a_part_of_a_page_that_fits_is_no_page,
            Replacement(page_file, "write", "written < view.nbytes", "False"),
        ),
        Fault(
            "what failed stays on the disk",
            test_a_part_of_a_page_that_fits_is_no_page,
            Replacement(Draft, "_give_up", "os.unlink(self._temporary)", "pass"),
        ),
        Fault(
            "free space stays claimed after a failure",
            test_a_part_of_a_page_that_fits_is_no_page,
            Replacement(Room, "release", "self._space.release(claim.nbytes)", "pass"),
        ),
        Fault(
            "a full disk stays full",
            test_a_full_disk_is_met_with_our_own_oldest_pages,
            Replacement(Root, "mend", "session.room.remove(2 * nbytes) > 0", "False"),
        ),
        Fault(
            "the floor is not looked at",
            test_the_floor_under_the_free_space_holds,
            Replacement(FreeSpace, "_lacking", "max(0, nbytes + self._spent - self._room)", "0"),
        ),
        Fault(
            "the free space is asked for once",
            test_the_floor_under_the_free_space_holds,
            Replacement(FreeSpace, "_lacking", "now - self._measured > _MEASURE_AGAIN or", "self._measured < 0 or False and"),
        ),
        Fault(
            "the cache makes up for others at once",
            test_what_others_put_on_the_disk_is_made_up_for_little_by_little,
            Replacement(Room, "_claim_space", "min(lacking, 2 * nbytes)", "lacking"),
        ),
        Fault(
            "the floor is never reached again",
            test_what_others_put_on_the_disk_is_made_up_for_little_by_little,
            Replacement(Room, "_claim_space", "min(lacking, 2 * nbytes)", "min(lacking, nbytes)"),
        ),
        Fault(
            "a root that was removed stays away",
            test_a_root_that_is_removed_while_it_is_used_is_made_again,
            Replacement(Root, "mend", "error.errno not in _GONE", "True"),
        ),
        Fault(
            "any disk will do",
            test_nothing_is_written_below_a_mount_point_whose_disk_has_gone,
            Replacement(Session, "__init__", "device is not None and _nearest_device(root) != device", "False"),
        ),
        Fault(
            "the disk is looked at after the folder is made",
            test_nothing_is_written_below_a_mount_point_whose_disk_has_gone,
            Replacement(
                Session,
                "__init__",
                "device is not None and",
                "Path(root).mkdir(parents=True, exist_ok=True) or device is not None and",
            ),
        ),
        Fault(
            "one bad file fails the batch",
            test_a_bad_file_keeps_no_other_from_being_read,
            Replacement(Reader, "get", "if all(value is None for value in values):", "if True:"),
        ),
    )
