"""The same pages through LocalFileStorage with a verified frame, and through bare files without one. It only times."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import make
from kvcache_unified_hicache.storage.page_frame import PageFrame

DIFFERENT = 16
"""Pages with contents of their own; they are written again and again under other keys."""
SLICE = 32 * 2**20
"""Bytes that one side writes or reads before it is the other's turn."""


class Side(ABC):
    """`pages` of `nbytes` in a folder of its own, numbered. Times are wall time."""

    def __init__(self, folder: Path, nbytes: int, pages: int) -> None:
        self.folder = folder
        self.nbytes = nbytes
        self.pages = pages

    @abstractmethod
    def write(self, first: int, n: int) -> float:
        """Write `n` pages from `first` on, and say how many seconds it took."""

    @abstractmethod
    def read(self, first: int, n: int) -> float:
        """As `write`."""

    @abstractmethod
    def empty(self) -> None:
        """Remove all pages."""

    def close(self) -> None:
        self.empty()


@final
class RawFiles(Side):
    """One folder, a temporary file and a rename; read into one buffer. No integrity."""

    def __init__(self, folder: Path, nbytes: int, pages: int) -> None:
        super().__init__(folder, nbytes, pages)
        folder.mkdir(parents=True)
        self._values = [os.urandom(nbytes) for _ in range(DIFFERENT)]
        self._paths = [str(folder / f"{number:06d}.bin") for number in range(pages)]
        self._buffer = bytearray(nbytes)

    def write(self, first: int, n: int) -> float:
        start = time.perf_counter()
        for number, path in enumerate(self._paths[first : first + n], start=first):
            with open(path + ".tmp", "wb", buffering=0) as file:  # noqa: PTH123 - the barest way there is
                file.write(self._values[number % DIFFERENT])
            os.replace(path + ".tmp", path)  # noqa: PTH105
        return time.perf_counter() - start

    def read(self, first: int, n: int) -> float:
        start = time.perf_counter()
        for path in self._paths[first : first + n]:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                file.readinto(self._buffer)
        return time.perf_counter() - start

    def empty(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()


@final
class Ours(Side):
    """LocalFileStorage by batches, every page sealed before it is written and verified after it is read."""

    def __init__(self, folder: Path, nbytes: int, pages: int, batch: int, **options: object) -> None:
        super().__init__(folder, nbytes, pages)
        self._storage = make(FileOptions.model_validate({"path": str(folder)} | options), StorageScope("bench/model", 16))
        self._frame = PageFrame([PageArray("kv", "uint8", (nbytes,))])
        self._values = [self._frame.new_value() for _ in range(max(DIFFERENT, batch))]
        for value in self._values:
            self._frame.payload_of(value)[:] = os.urandom(nbytes)
        self._keys = [os.urandom(32).hex() for _ in range(pages)]
        self._batch = batch

    def write(self, first: int, n: int) -> float:
        start, number = time.perf_counter(), first
        for keys in in_batches(self._keys[first : first + n], self._batch):
            # A page is sealed for its key, so the same contents need a value each in a batch.
            values = [self._values[(number + at) % len(self._values)] for at in range(len(keys))]
            for key, value in zip(keys, values, strict=True):
                self._frame.seal(key, value)
            self._storage.set(keys, values)
            number += len(keys)
        return time.perf_counter() - start

    def read(self, first: int, n: int) -> float:
        start = time.perf_counter()
        for keys in in_batches(self._keys[first : first + n], self._batch):
            for key, value in zip(keys, self._storage.get(keys), strict=True):
                assert value is not None
                self._frame.open(key, value)
                del value  # its memory is the next one's
        return time.perf_counter() - start

    def empty(self) -> None:
        self._storage.delete(self._keys)

    def close(self) -> None:
        super().close()
        self._storage.close()


def in_batches(keys: Sequence[str], batch: int) -> Iterator[Sequence[str]]:
    return (keys[start : start + batch] for start in range(0, len(keys), batch))


def in_turns(
    sides: Sequence[Side], turn: int, work: Callable[[Side, int, int], float], before: Callable[[], None] | None = None
) -> list[float]:
    """Microseconds a page of each side. They take turns every `turn` pages and who begins alternates: what the disk, or the
    memory that the page cache is given, happens to be like meets all of them. `before` each turn."""
    pages = min(side.pages for side in sides)
    seconds = [0.0] * len(sides)
    for first in range(0, pages, turn):
        order = range(len(sides)) if first // turn % 2 == 0 else range(len(sides) - 1, -1, -1)
        for at in order:
            if before is not None:
                before()
            seconds[at] += work(sides[at], first, min(turn, pages - first))
    return [spent / pages * 1e6 for spent in seconds]


def drop(folder: Path) -> None:
    """Take the files of a folder out of the page cache."""
    os.sync()
    for path in _files(folder):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _files(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            yield f"{place}/{name}"


def rounds(sides: Sequence[Side], n: int, turn: int) -> dict[str, list[list[float]]]:
    """`write`, `warm`, `cold`: for each side its rounds. All start empty. Before each turn of writing the system writes back what
    there is: how it does that in the background would otherwise be what is compared."""
    made: dict[str, list[list[float]]] = {what: [[] for _ in sides] for what in ("write", "warm", "cold")}
    for _ in range(n):
        for side in sides:
            side.empty()
        found = {"write": in_turns(sides, turn, lambda side, first, n: side.write(first, n), os.sync)}
        for what in ("once", "warm", "cold"):
            if what == "cold":
                for side in sides:
                    drop(side.folder)
            found[what] = in_turns(sides, turn, lambda side, first, n: side.read(first, n))
        for what, of in made.items():
            for at, spent in enumerate(found[what]):
                of[at].append(spent)
    return made
