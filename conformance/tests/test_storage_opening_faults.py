"""Planted faults in how a storage backend is opened and closed, and in what it does for one who only looks."""

import threading
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from kvcache_conformance.storage_bench import StorageBench
from kvcache_conformance.storage_fault_tests import StorageFaultTests
from kvcache_conformance.storage_toy import ToyStorage, ToyStorageKit


class TakesWhatALookerSets(ToyStorage):
    """As one that looks at `read_only` only where it makes room."""

    def check_writable(self):
        if self.max_bytes is not None:
            super().check_writable()


class DeletesForALooker(ToyStorage):
    def delete(self, keys):
        with self.disk.lock:
            for key in keys:
                self.disk.pages.pop(self.place(key), None)


class RefusesAfterItIsDone(ToyStorage):
    def set(self, keys, values):
        with self.disk.lock:
            for key, value in zip(keys, values, strict=True):
                self.put(self.place(key), bytes(value))
        self.check_writable()


class TidiesWheneverItIsOpened(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        if self.scope.read_only:
            self.disk.pages = {place: value for place, value in self.disk.pages.items() if len(value) < 1000}


class ClosesOnceWhenUsed(ToyStorage):
    """It gives back at every closing what it took for the first page."""

    used, closed = False, 0

    def set(self, keys, values):
        super().set(keys, values)
        self.used = True

    def close(self):
        self.closed += 1
        if self.used and self.closed > 1:
            raise RuntimeError("release unlocked lock")


class LeavesAThread(ToyStorage):
    def set(self, keys, values):
        super().set(keys, values)
        # It ends by itself some time after the test.
        threading.Thread(target=threading.Event().wait, args=(3.0,), name="flusher", daemon=True).start()


class LeavesAFileOpen(ToyStorage):
    """Until somebody collects it."""

    def get(self, keys):
        with Path(__file__).open("rb") as file:
            self.mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        return super().get(keys)


class FolderKit(ToyStorageKit):
    """The toy with a folder in the place, which is all that is seen of it from outside. Nothing is wrong with it."""

    def open_storage(self, place, scope):
        if not scope.read_only:
            (place / "store").mkdir(exist_ok=True)
        elif not (place / "store").is_dir():
            raise FileNotFoundError("there is no store")
        return super().open_storage(place, scope)


class MakesTheFolder(FolderKit):
    def open_storage(self, place, scope):
        (place / "store").mkdir(exist_ok=True)
        return super().open_storage(place, scope)


class ShowsAnEmptyStore(FolderKit):
    def open_storage(self, place, scope):
        with suppress(FileNotFoundError):
            return super().open_storage(place, scope)
        return ToyStorageKit.open_storage(self, place, scope)


class WritesALogForWhoeverOpens(FolderKit):
    def open_storage(self, place, scope):
        storage = super().open_storage(place, scope)
        (place / "store" / ("reader.log" if scope.read_only else "writer.log")).write_bytes(b"")
        return storage


class WritesIntoItsFile(FolderKit):
    """Whoever opens it."""

    def open_storage(self, place, scope):
        storage = super().open_storage(place, scope)
        with (place / "store" / "openings").open("ab") as file:
            file.write(b".")
        return storage


class LosesAll(ToyStorage):
    def put(self, place, value):
        pass


class SwallowsItsError(FolderKit):
    """What cannot be opened takes everything, and has nothing."""

    def open_storage(self, place, scope):
        try:
            return super().open_storage(place, scope)
        except OSError:
            return LosesAll(self._disks[place], scope)


class GoesOnInMemory(SwallowsItsError):
    def open_storage(self, place, scope):
        if not place.is_dir():
            self._disks.pop(place, None)
            return ToyStorageKit.open_storage(self, place, scope)
        return super().open_storage(place, scope)


class ClearsTheWay(FolderKit):
    def open_storage(self, place, scope):
        if not place.is_dir():
            place.unlink()
            place.mkdir()
        return super().open_storage(place, scope)


@pytest.mark.parametrize(
    ("kit", "test", "said"),
    [
        (SwallowsItsError, "test_it_says_so_where_it_cannot_work", "has to raise at the start"),
        (GoesOnInMemory, "test_it_says_so_where_it_cannot_work", "has to raise at the start"),
        (ClearsTheWay, "test_it_says_so_where_it_cannot_work", "was removed or changed"),
        (
            MakesTheFolder,
            "test_one_who_only_looks_makes_no_store",
            "where one only looks, it made 'store'",
        ),
        (ShowsAnEmptyStore, "test_one_who_only_looks_makes_no_store", "would look like an empty store"),
        (WritesALogForWhoeverOpens, "test_one_who_only_looks_changes_nothing", "'store/reader.log' was made, changed or"),
        (WritesIntoItsFile, "test_one_who_only_looks_changes_nothing", "'store/openings' was made, changed or removed"),
    ],
)
def test_what_is_done_in_the_folder_is_noticed(tmp_path, kit, test, said):
    with StorageBench(FolderKit(), tmp_path / "good") as bench:
        getattr(FolderKit(), test)(bench)
    made = kit()
    with pytest.raises(AssertionError, match=said), StorageBench(made, tmp_path / "faulty") as bench:
        getattr(made, test)(bench)


class TestFaultsOfOpening(StorageFaultTests):
    parts = ("opening",)
    elsewhere = frozenset({"test_it_says_so_where_it_cannot_work", "test_one_who_only_looks_makes_no_store"})
    faults = (
        (TidiesWheneverItIsOpened, "test_one_who_only_looks_changes_nothing"),
        (TakesWhatALookerSets, "test_one_who_only_looks_cannot_write"),
        (DeletesForALooker, "test_one_who_only_looks_cannot_write"),
        (RefusesAfterItIsDone, "test_one_who_only_looks_cannot_write"),
        (ClosesOnceWhenUsed, "test_it_may_be_closed_twice_after_use"),
        (LeavesAThread, "test_closing_leaves_nothing_behind"),
        (LeavesAFileOpen, "test_closing_leaves_nothing_behind"),
    )
