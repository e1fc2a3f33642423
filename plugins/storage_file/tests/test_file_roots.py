"""Roots that cannot be used and roots that go away, as a whole or page by page (FAULTS S4, C5)."""

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
from kvcache_conformance.storage_numbered import expect_stored, largest_page, numbered_key, numbers_there, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.reader import Reader
from kvcache_storage_file.root import Root
from kvcache_storage_file.session import Session
from kvcache_storage_file.storage import make

NBYTES = 100_000
MIB = 2**20


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
    assert caught.value.path == ("hicache", "storage", "path")
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


class TestFaultsOfRoots(PlantedFaultTests):
    faults = (
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
            Replacement(Reader, "_each", "if all(answer is None for answer in answers):", "if True:"),
        ),
    )
