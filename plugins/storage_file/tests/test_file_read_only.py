"""Looking into a root leaves it as it is: `StorageScope.read_only`."""

import os
import time
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import largest_page, numbered_key, numbers_there, page_of, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_file import storage as factory
from kvcache_storage_file.read_only import ReadOnlyFileStorage
from kvcache_storage_file.reader import Reader

NBYTES = 1000
LIMIT = 4 * largest_page(NBYTES)


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    """Everything below: names, and the times at which files and folders were changed."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (folder, *folder.rglob("*"))}


def unfinished(root) -> Path:
    """What a killed process left."""
    folder = root.path / ".kvcache" / "0123456789abcdef"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "0.tmp").write_bytes(b"half a page")
    return folder / "0.tmp"


def test_looking_changes_nothing(root):
    """Pages above the limit, old pages that are read, leftovers of the dead: all stays, to the time of each file."""
    writer = root.open()
    store_numbered(writer, range(20), NBYTES)
    store_numbered(root.open(StorageScope("x" * 300, 64)), range(3), NBYTES)
    writer.close()
    unfinished(root)
    used = time.time() - 1000
    for path in root.pages():
        os.utime(path, (used, used))
    before = state(root.path)
    storage = root.look(max_bytes=LIMIT)
    assert numbers_there(storage, range(30), NBYTES) == list(range(20))
    assert storage.exists([numbered_key(0), numbered_key(20)]) == [True, False]
    assert len(list(storage.scan())) == 23
    storage.close()
    assert state(root.path) == before


def test_what_is_looked_into_may_change_meanwhile(root):
    limited = root.open(max_bytes=LIMIT)
    looking = root.look()
    for number in range(20):
        store_numbered(limited, [number], NBYTES)
    assert numbers_there(looking, range(20), NBYTES) == numbers_there(limited, range(20), NBYTES)
    limited.check_integrity()


@pytest.mark.parametrize("there", [False, True], ids=["nothing", "a file"])
def test_where_there_is_no_folder_there_is_no_store(root, there):
    if there:
        root.path.write_text("a file")
    with pytest.raises(StorageError, match=r"No such file or directory|Not a directory") as caught:
        root.look()
    assert str(root.path) in str(caught.value)
    assert root.path.exists() == there


def test_nothing_is_stored_or_deleted_by_one_who_looks(root):
    store_numbered(root.open(), [1], NBYTES)
    storage, key = root.look(), numbered_key(1)
    with pytest.raises(OSError, match="read only"):
        storage.set([key], [page_of(key, NBYTES)])
    with pytest.raises(OSError, match="read only"):
        storage.delete([key])
    assert root.file(1).exists()


def test_a_folder_without_books_can_be_looked_into(root):
    """A copy of the pages alone, or a disk that is mounted to be read only."""
    root.file(1).parent.mkdir(parents=True)
    root.file(1).write_bytes(page_of(numbered_key(1), NBYTES))
    assert numbers_there(root.look(), [1, 2], NBYTES) == [1]
    assert not (root.path / ".kvcache").exists()


def test_it_is_not_used_after_it_is_closed(root):
    root.open().close()
    storage = root.look()
    storage.close()
    storage.close()
    for call in (lambda: storage.exists([]), lambda: storage.get([]), storage.scan):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_scope_is_the_same_whoever_looks():
    assert StorageScope("model", 16, read_only=True) == StorageScope("model", 16)
    assert len({StorageScope("model", 16, read_only=True), StorageScope("model", 16)}) == 1


class TestPlantedFaults(PlantedFaultTests):
    faults = (
        Fault(
            "whoever looks makes room",
            test_looking_changes_nothing,
            Replacement(factory, "make", "if scope.read_only:", "if False:"),
        ),
        Fault(
            "looking is use",
            test_looking_changes_nothing,
            Replacement(Reader, "_each", "now - number if self._renew else None", "now - number"),
        ),
        Fault(
            "a folder that is missing has no pages",
            lambda root: test_where_there_is_no_folder_there_is_no_store(root, there=False),
            Replacement(ReadOnlyFileStorage, "__init__", "if not stat.S_ISDIR(os.stat(root).st_mode):", "if False:"),
        ),
    )
