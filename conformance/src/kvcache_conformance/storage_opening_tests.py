"""The part `opening` of the kit: how a backend is opened and closed, and what it does for one who only looks. Nobody may leave it
out. What lies in the test's folder is seen from outside; of a store that is elsewhere, a server's, only the answers are.
"""

import threading
import time
from abc import ABC
from collections import Counter
from dataclasses import replace
from pathlib import Path

from kvcache_conformance.storage_bench import SCOPE, StorageBench, content, expect_pages, new_keys
from kvcache_conformance.storage_kit import StorageKit
from kvcache_core.contracts.storage import HiCacheStorage

LOOKING = replace(SCOPE, read_only=True)

_OPEN_FILES = Path("/proc/self/fd")


class OpeningStorageTests(StorageKit, ABC):
    """Opening, looking, closing."""

    def test_it_says_so_where_it_cannot_work(self, bench: StorageBench) -> None:
        """A file lies where the folder of the store should be. One that is elsewhere works all the same, and has to show it."""
        bench.place.rmdir()
        bench.place.write_bytes(b"in the way")
        (key,) = new_keys(1)
        try:
            storage = bench.open()
            storage.set([key], [content(100)])
            if "persistent" in self.declared():
                bench.close(storage)
                storage = bench.open()
            found = storage.get([key])
        except Exception:  # it has said so, in whatever words
            found = [content(100)]
        assert found == [content(100)], (
            "a file lies where the folder of the store should be; neither opening nor `set` raised, and what was set is not "
            "there: a backend that cannot work has to raise at the start, or every page is a silent miss"
        )
        same = bench.place.is_file() and bench.place.read_bytes() == b"in the way"
        assert same, "a file that lay where the folder of the store should be was removed or changed"

    def test_one_who_only_looks_makes_no_store(self, bench: StorageBench) -> None:
        looking = self._look(bench)
        made = [*files_below(bench.place)]
        assert not made, f"opened with read_only, where one only looks, it made {made[0]!r}"
        storage = bench.open()
        storage.set(new_keys(1), [content(100)])
        assert looking is None or not files_below(bench.place), (
            "opened with read_only where there is no store, it did not raise: a slip in a path would look like an empty store"
        )

    def test_one_who_only_looks_changes_nothing(self, bench: StorageBench) -> None:
        writer, keys = self._filled(bench)
        before = files_below(bench.place)
        looking = self._look(bench)
        if looking is not None:
            looking.exists(keys)
            looking.get(keys)
            if "scan" in self.declared():
                sum(1 for _ in looking.scan())
            bench.close(looking)
        self._expect_as_it_was(bench, writer, keys, before)

    def test_one_who_only_looks_cannot_write(self, bench: StorageBench) -> None:
        writer, keys = self._filled(bench)
        before = files_below(bench.place)
        looking = self._look(bench)
        if looking is not None:
            _expect_refused(looking, keys)
            bench.close(looking)
        self._expect_as_it_was(bench, writer, keys, before)

    def test_it_may_be_closed_twice_after_use(self, bench: StorageBench) -> None:
        storage = self._used(bench)
        try:
            storage.close()
            storage.close()
        except Exception as error:
            raise AssertionError(
                f"closing a store again after it was used raised {type(error).__name__}: {error}; `close` is idempotent"
            ) from error

    def test_closing_leaves_nothing_behind(self, bench: StorageBench) -> None:
        """What a process keeps for good, as some libraries do, is there after the first opening; what stays each time is not."""
        first = self._used(bench)
        threads, files = _threads(), _open_files()
        closed = [self._used(bench) for _ in range(2)]
        until = time.monotonic() + self.closing_seconds
        while (_more(threads, _threads()) or _more(files, _open_files())) and time.monotonic() < until:
            time.sleep(0.02)
        left = {"threads": _more(threads, _threads()), "open files": _more(files, _open_files())}
        for kind, names in left.items():
            assert not names, f"`close` leaves {kind} behind: {', '.join(names[:5])} after {len(closed)} more openings"
        # Until here, so that it is `close` that has released them.
        del first, closed

    def _used(self, bench: StorageBench) -> HiCacheStorage:
        """A store that was opened, written, read and closed."""
        storage, keys = bench.open(), new_keys(2)
        storage.set(keys[:1], [content(100)])
        expect_pages(storage, keys, [content(100), None])
        bench.close(storage)
        return storage

    def _filled(self, bench: StorageBench) -> tuple[HiCacheStorage | None, list[str]]:
        """Three keys, two of which have pages. The one who wrote them is closed where they stay; else it is given."""
        storage, keys = bench.open(), new_keys(3)
        storage.set(keys[:2], [content(10), content(5000)])
        if "persistent" not in self.declared():
            return storage, keys
        bench.close(storage)
        return None, keys

    def _look(self, bench: StorageBench) -> HiCacheStorage | None:
        """None: it refused."""
        try:
            return bench.open(LOOKING)
        except Exception:  # in whatever words
            return None

    def _expect_as_it_was(
        self, bench: StorageBench, writer: HiCacheStorage | None, keys: list[str], before: dict[str, bytes]
    ) -> None:
        if writer is None:
            after = files_below(bench.place)
            changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            assert not changed, f"{changed[0]!r} was made, changed or removed by one who only looks (read_only)"
        expect_pages(bench.open() if writer is None else writer, keys, [content(10), content(5000), None])


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes, and every folder with none, by its name from there."""
    found = sorted(folder.rglob("*"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b"" for path in found}


def _expect_refused(looking: HiCacheStorage, keys: list[str]) -> None:
    """`keys`: the first is there, the last is not."""
    for name, call in (
        ("set", lambda: looking.set(keys[2:], [content(7)])),
        ("delete", lambda: looking.delete(keys[:1])),
    ):
        refused = False
        try:
            call()
        except Exception:  # in whatever words
            refused = True
        assert refused, f"`{name}` did not raise in a store that was opened with read_only"


def _threads() -> Counter[str]:
    return Counter(thread.name for thread in threading.enumerate())


def _open_files() -> Counter[str]:
    """By what they are; nothing where the system does not tell."""
    found: Counter[str] = Counter()
    for link in _OPEN_FILES.iterdir() if _OPEN_FILES.is_dir() else ():
        try:
            found[str(link.readlink())] += 1
        except FileNotFoundError:  # the one that lists them
            continue
    return found


def _more(before: Counter[str], now: Counter[str]) -> list[str]:
    """What is there now and was not before, where there are more altogether: another one in one's place is none more."""
    return sorted((now - before).elements()) if now.total() > before.total() else []
