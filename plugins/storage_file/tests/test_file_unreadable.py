"""Folders in a root that may not be read: they are named and left out, and everything else goes on (FAULTS S4)."""

import os
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import largest_page, numbers_there, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import StorageError
from kvcache_storage_file import storage as factory
from kvcache_storage_file.pages import Pages

NBYTES = 1000
LIMIT = 10 * largest_page(NBYTES)
LONG = "x" * 300


def lock(monkeypatch, folder: Path) -> None:
    """As mode 000 does it to all but the superuser, who often runs these tests."""
    scandir, stat, opened = os.scandir, os.stat, os.open

    def check(path, itself):
        if not isinstance(path, int) and (folder in Path(path).parents or (itself and Path(path) == folder)):
            raise PermissionError(13, "Permission denied", str(path))

    def locked_scandir(path="."):
        check(path, True)
        return scandir(path)

    def locked_stat(path, *args, **kwargs):
        check(path, False)
        return stat(path, *args, **kwargs)

    def locked_open(path, *args, **kwargs):
        check(path, True)
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "scandir", locked_scandir)
    monkeypatch.setattr(os, "stat", locked_stat)
    monkeypatch.setattr(os, "open", locked_open)


def said(caplog, folder: Path) -> int:
    return sum(f"{folder} cannot be read" in each.getMessage() for each in caplog.records)


@pytest.mark.parametrize("level", ["model", "page size", "shard"])
def test_a_folder_that_may_not_be_read_is_left_out_and_named(root, level, monkeypatch, caplog):
    other = root.open(StorageScope("other", 16))
    store_numbered(other, range(3), NBYTES)
    other.close()
    store_numbered(root.open(), range(10, 13), NBYTES)
    shard = root.file(1, "other").parent
    folder = {"shard": shard, "page size": shard.parent, "model": shard.parent.parent}[level]
    lock(monkeypatch, folder)
    try:
        storage = root.open(max_bytes=LIMIT)
        seen, looked = list(storage.scan()), list(root.look().scan())
    except (StorageError, PermissionError) as error:
        pytest.fail(f"one folder stops everything: {error}")
    assert len(seen) == len(looked) == (5 if level == "shard" else 3)
    assert said(caplog, folder) == 2, "once for each opener"
    store_numbered(storage, range(20, 40), NBYTES)
    assert numbers_there(storage, [39], NBYTES) == [39]
    assert said(caplog, folder) == 2
    storage.check_integrity()


def test_a_name_that_may_not_be_read_leaves_out_its_model(root, monkeypatch, caplog):
    store_numbered(root.open(), [1], NBYTES)
    store_numbered(root.open(StorageScope(LONG, 16)), [1], NBYTES)
    (name,) = root.path.glob("*/model_id.txt")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    try:
        seen = list(root.look().scan())
    except PermissionError as error:
        pytest.fail(f"one file stops everything: {error}")
    assert [page.model_id for page in seen] == ["model"]
    assert said(caplog, name) == 1


def test_a_root_that_may_not_be_read_is_an_error(root, monkeypatch):
    """It would look as if there was nothing."""
    store_numbered(root.open(), [1], NBYTES)
    looking = root.look()
    lock(monkeypatch, root.path)
    with pytest.raises(PermissionError):
        list(looking.scan())


def test_an_error_at_the_start_names_the_culprit(root, monkeypatch):
    root.open().close()
    lock(monkeypatch, root.path / ".kvcache")
    with pytest.raises(StorageError, match="Permission denied") as caught:
        root.open()
    assert str(root.path / ".kvcache" / "lock") in str(caught.value)


AS_NOBODY = """
import logging, os, sys
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import make

root, = sys.argv[1:]
logging.basicConfig(stream=sys.stdout, format="%(message)s")
def opened(model, root=root): return make(FileOptions(path=root, min_free_bytes=0, max_bytes=10_000), StorageScope(model, 16))
# Whatever is imported on first use is imported now: nobody may be unable to read the checkout.
first = opened("mine", f"{root}.first")
first.set(["ab" * 32], [b"page"])
list(first.scan())
first.close()
known = set(sys.modules)
os.mkdir(root)
if os.geteuid() == 0:
    os.chown(root, 65534, 65534)
    os.setegid(65534)
    os.seteuid(65534)
for model in ("mine", "other"):
    store = opened(model)
    store.set(["ab" * 32], [b"page"])
    store.close()
os.chmod(f"{root}/other", 0o000)
store = opened("mine")
print([page.model_id for page in store.scan()], flush=True)
store.close()
os.chmod(f"{root}/other", 0o700)
assert set(sys.modules) == known, set(sys.modules) - known
"""


def test_a_real_folder_without_permission_is_left_out(tmp_path):
    """In a process that is not root: root may do everything."""
    for folder in (tmp_path, *takewhile(lambda folder: folder != Path(tempfile.gettempdir()), tmp_path.parents)):
        folder.chmod(0o755)
    command = [sys.executable, "-c", AS_NOBODY, str(tmp_path / "root")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = f"{tmp_path}/root/other cannot be read, its pages are left out (said once): Permission denied"
    assert (done.returncode, done.stdout.splitlines()) == (0, [said, "['mine']"]), done.stderr


class TestPlantedFaults(PlantedFaultTests):
    faults = (
        Fault(
            "one model's folder stops everything",
            lambda root, monkeypatch, caplog: test_a_folder_that_may_not_be_read_is_left_out_and_named(
                root, "model", monkeypatch, caplog
            ),
            Replacement(Pages, "scopes", "except PermissionError", "except ZeroDivisionError"),
        ),
        Fault(
            "one shard's folder stops everything",
            lambda root, monkeypatch, caplog: test_a_folder_that_may_not_be_read_is_left_out_and_named(
                root, "shard", monkeypatch, caplog
            ),
            Replacement(Pages, "in_shard_of", "except PermissionError", "except ZeroDivisionError"),
        ),
        Fault(
            "the wrong folder is named",
            lambda root, monkeypatch, caplog: test_a_folder_that_may_not_be_read_is_left_out_and_named(
                root, "page size", monkeypatch, caplog
            ),
            Replacement(Pages, "in_shard_of", "self._leave_out(culprit, error)", "self._leave_out(folder, error)"),
        ),
        Fault(
            "it is said with every look",
            lambda root, monkeypatch, caplog: test_a_folder_that_may_not_be_read_is_left_out_and_named(
                root, "shard", monkeypatch, caplog
            ),
            Replacement(Pages, "_leave_out", "self._left_out.add(path)", "pass"),
        ),
        Fault(
            "one name stops everything",
            test_a_name_that_may_not_be_read_leaves_out_its_model,
            Replacement(Pages, "_model_id", "except PermissionError", "except ZeroDivisionError"),
        ),
        Fault(
            "the culprit is not named",
            test_an_error_at_the_start_names_the_culprit,
            Replacement(factory, "_reason", "error.filename in (None, path)", "True"),
        ),
    )
