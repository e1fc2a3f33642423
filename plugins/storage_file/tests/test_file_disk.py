"""Disks that fill, and the room that stays free on them (FAULTS S2)."""

import os
import shutil
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import expect_stored, numbered_key, numbers_there, page_of, store_numbered
from kvcache_core.cli import main
from kvcache_core.errors import StorageError
from kvcache_storage_file import free_space, full_disk, page_file
from kvcache_storage_file.draft import Draft
from kvcache_storage_file.free_space import FreeSpace
from kvcache_storage_file.ledger import Ledger
from kvcache_storage_file.member import Member
from kvcache_storage_file.room import Room
from kvcache_storage_file.root import Root

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


def test_room_that_somebody_else_takes_is_made_once_more(small_disk, monkeypatch):
    """Two processes at the floor: what one frees the other writes into, with a page that is a little larger."""
    root = small_disk(8 * MIB)
    storage = root.open(min_free_bytes=3 * MIB)
    store_numbered(storage, range(60), NBYTES)
    other = root.path.parent / "other"
    block = os.statvfs(root.path).f_frsize
    other.write_bytes(bytes(free(root) - 3 * MIB - block))  # so that a page that is removed is just enough
    remove = Ledger.remove

    def taken(self, *page):
        freed = remove(self, *page)
        with other.open("ab") as file:
            file.write(bytes(-(-freed // block) * block))
        return freed

    monkeypatch.setattr(Ledger, "remove", taken)
    expect_stored(storage, [100], NBYTES + 300)
    assert numbers_there(storage, [100], NBYTES + 300) == [100]
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


def filled(root) -> Path:
    """To the last byte, by somebody else."""
    other = root.path.parent / "other"
    other.write_bytes(bytes(free(root)))
    assert free(root) == 0
    return other


@pytest.mark.parametrize("books", [True, False], ids=["with books", "without"])
def test_a_root_on_a_full_disk_opens_in_the_place_of_its_oldest_pages(small_disk, caplog, books):
    root = small_disk(4 * MIB)
    storage = root.open()
    store_numbered(storage, range(30), NBYTES)
    storage.close()
    if not books:
        shutil.rmtree(root.path / ".kvcache")
        (root.path / ".kvcache").mkdir()
    filled(root)
    try:
        storage = root.open(max_bytes=4 * MIB)
    except StorageError as error:
        pytest.fail(f"it does not open: {error}")
    left = numbers_there(storage, range(30), NBYTES)
    assert left == list(range(30 - len(left), 30))
    assert 30 - MIB // NBYTES - 1 <= len(left) < 30
    assert "the oldest pages were removed to open it" in caplog.text
    store_numbered(storage, [100], NBYTES)
    assert numbers_there(storage, [100], NBYTES) == [100]
    storage.check_integrity()


def test_a_full_disk_without_pages_stops_the_start_and_says_what_to_do(small_disk):
    root = small_disk(MIB)
    root.path.mkdir()
    other = filled(root)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StorageError, match=r"No space left on device, and there is no page to remove.*: free some space"):
        root.open()
    assert [path.name for path in (root.path / ".kvcache").iterdir()] == ["lock"]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    other.unlink()
    store_numbered(root.open(), [1], NBYTES)


@pytest.mark.parametrize("command", ["prune --older-than 1h", "prune --max-bytes 1MiB", "verify --remove", "inspect"])
def test_the_commands_work_on_a_full_disk(small_disk, tmp_path, capsys, command):
    root = small_disk(4 * MIB)
    storage = root.open()
    store_numbered(storage, range(30), NBYTES)
    storage.close()
    for number in range(20):
        root.age(number, 10_000 - number)
    filled(root)
    config = tmp_path / "cache.yaml"
    config.write_text(f"hicache:\n  storage: {{kind: file, path: {root.path}}}\n", encoding="utf-8")
    name, *flags = command.split()
    code = main(["storage", name, str(config), *flags])
    assert "No space" not in capsys.readouterr().err
    # What these pages hold is no KV page: the one that verifies finds them bad.
    assert code == (name == "verify")
    left = {"prune --older-than 1h": 10, "prune --max-bytes 1MiB": 10, "verify --remove": 0, "inspect": 30}[command]
    assert len(root.pages()) == left


class TestFaultsOfDisks(PlantedFaultTests):
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
            Replacement(Root, "mend", 'session.room.remove(2 * nbytes, used, "because the disk is full") > 0', "False"),
        ),
        Fault(
            "a root on a full disk stays closed",
            lambda small_disk, caplog: test_a_root_on_a_full_disk_opens_in_the_place_of_its_oldest_pages(
                small_disk, caplog, books=True
            ),
            Replacement(Root, "_begun", "error.errno not in full_disk.FULL", "True"),
        ),
        Fault(
            "any page makes room to open",
            lambda small_disk, caplog: test_a_root_on_a_full_disk_opens_in_the_place_of_its_oldest_pages(
                small_disk, caplog, books=True
            ),
            Replacement(full_disk, "make_room_to_open", "freed < ENOUGH and", ""),
        ),
        Fault(
            "an opening that failed leaves its folder",
            test_a_full_disk_without_pages_stops_the_start_and_says_what_to_do,
            Replacement(Member, "__init__", "undo.callback(shutil.rmtree, self._folder, ignore_errors=True)", "pass"),
        ),
        Fault(
            "an opening that failed keeps its lock",
            test_a_full_disk_without_pages_stops_the_start_and_says_what_to_do,
            Replacement(Member, "__init__", "undo.callback(os.close, self._fd)", "pass"),
        ),
        Fault(
            "nothing to remove is not looked at",
            test_a_full_disk_without_pages_stops_the_start_and_says_what_to_do,
            Replacement(full_disk, "make_room_to_open", "if not freed:", "if False:"),
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
            "room that somebody takes is not made again",
            test_room_that_somebody_else_takes_is_made_once_more,
            Replacement(Room, "_claim_space", "freed += self.remove(nbytes - freed, used, why)", "pass"),
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
    )
