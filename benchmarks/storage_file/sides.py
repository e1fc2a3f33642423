"""The same pages through LocalFileStorage with a verified frame, and through bare files without one. It only times."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
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
"""Bytes that one side writes before it is the other's turn."""


class Side(ABC):
    """`pages` of `nbytes` in a folder of its own. Times are microseconds a page, in wall time."""

    def __init__(self, folder: Path, nbytes: int, pages: int) -> None:
        self.folder = folder
        self.nbytes = nbytes
        self.pages = pages

    @abstractmethod
    def writes(self) -> Iterator[int]:
        """Write all pages, call by call: how many each call wrote."""

    @abstractmethod
    def read(self) -> None: ...

    @abstractmethod
    def empty(self) -> None:
        """Remove all pages."""

    def timed_read(self, *, cold: bool) -> float:
        if cold:
            drop(self.folder)
        return self._timed(self.read)

    def close(self) -> None:
        self.empty()

    def _timed(self, work) -> float:
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) / self.pages * 1e6


@final
class RawFiles(Side):
    """One folder, a temporary file and a rename; read into one buffer. No integrity."""

    def __init__(self, folder: Path, nbytes: int, pages: int) -> None:
        super().__init__(folder, nbytes, pages)
        folder.mkdir(parents=True)
        self._values = [os.urandom(nbytes) for _ in range(DIFFERENT)]
        self._paths = [str(folder / f"{number:06d}.bin") for number in range(pages)]
        self._buffer = bytearray(nbytes)

    def writes(self) -> Iterator[int]:
        for number, path in enumerate(self._paths):
            with open(path + ".tmp", "wb", buffering=0) as file:  # noqa: PTH123 - the barest way there is
                file.write(self._values[number % DIFFERENT])
            os.replace(path + ".tmp", path)  # noqa: PTH105
            yield 1

    def read(self) -> None:
        for path in self._paths:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                file.readinto(self._buffer)

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
        keys = [os.urandom(32).hex() for _ in range(pages)]
        self._batches = [keys[start : start + batch] for start in range(0, pages, batch)]

    def writes(self) -> Iterator[int]:
        number = 0
        for keys in self._batches:
            # A page is sealed for its key, so the same contents need a value each in a batch.
            values = [self._values[(number + at) % len(self._values)] for at in range(len(keys))]
            for key, value in zip(keys, values, strict=True):
                self._frame.seal(key, value)
            self._storage.set(keys, values)
            number += len(keys)
            yield len(keys)

    def read(self) -> None:
        for keys in self._batches:
            for key, value in zip(keys, self._storage.get(keys), strict=True):
                assert value is not None
                self._frame.open(key, value)
                del value  # its memory is the next one's

    def empty(self) -> None:
        self._storage.delete([key for keys in self._batches for key in keys])

    def close(self) -> None:
        super().close()
        self._storage.close()


def timed_writes(sides: Sequence[Side]) -> list[float]:
    """Microseconds a page of each side. All start empty and take turns every SLICE bytes, and before each turn the system writes
    back what there is: how it does that in the background would otherwise be what is compared."""
    for side in sides:
        side.empty()
    calls = [side.writes() for side in sides]
    seconds, written = [0.0] * len(sides), [0] * len(sides)
    while any(done < side.pages for done, side in zip(written, sides, strict=True)):
        for at, side in enumerate(sides):
            upto = min(side.pages, written[at] + max(1, SLICE // side.nbytes))
            os.sync()
            start = time.perf_counter()
            while written[at] < upto:
                written[at] += next(calls[at])
            seconds[at] += time.perf_counter() - start
    return [spent / side.pages * 1e6 for spent, side in zip(seconds, sides, strict=True)]


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


def rounds(sides: Sequence[Side], n: int) -> dict[str, list[list[float]]]:
    """`write`, `warm`, `cold`: for each side its rounds. Sides take turns, and who begins alternates."""
    made: dict[str, list[list[float]]] = {what: [[] for _ in sides] for what in ("write", "warm", "cold")}
    for number in range(n):
        order = range(len(sides)) if number % 2 == 0 else range(len(sides) - 1, -1, -1)
        for at, spent in zip(order, timed_writes([sides[at] for at in order]), strict=True):
            made["write"][at].append(spent)
        for at in order:
            sides[at].read()
            made["warm"][at].append(sides[at].timed_read(cold=False))
        for at in order:
            made["cold"][at].append(sides[at].timed_read(cold=True))
    return made
