"""What bringing pages back from files costs at the very least: the passes over their bytes that nothing can leave out.

Plain files of a page each are read again and again, so they come from the system's page cache. Nothing of kvcache runs here.
"""

import mmap
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np
import xxhash


@final
class Reads:
    """Passes over `files` files of `nbytes` each, made in `folder`, by one thread. All but `fresh` use memory that was written
    before.

    `arrays`: equal parts that a page consists of; a batch in host memory keeps each of them for all pages together.
    """

    def __init__(self, folder: Path, files: int, nbytes: int, arrays: int) -> None:
        folder.mkdir(parents=True)
        self._paths = [str(folder / str(i)) for i in range(files)]
        self._nbytes = nbytes
        for path in self._paths:
            Path(path).write_bytes(bytes(nbytes))
        self._warm, part = np.ones(files * nbytes, np.uint8), nbytes // arrays
        view = self._warm.data
        starts = [[(array * files + page) * part for array in range(arrays)] for page in range(files)]
        self._places = [[view[start : start + part] for start in of_page] for of_page in starts]
        self.seconds(self.plain)

    @staticmethod
    def seconds(once: Callable[[], None]) -> float:
        start = time.perf_counter()
        once()
        return time.perf_counter() - start

    def plain(self) -> None:
        """Read every file, into the same memory each time or new one, as the C library likes: the yardstick."""
        for path in self._paths:
            Path(path).read_bytes()

    def fresh(self) -> None:
        """Read all of them into memory that the process has never touched, which the system has to clear and map."""
        memory = mmap.mmap(-1, len(self._paths) * self._nbytes)
        view = memoryview(memory)
        for number, path in enumerate(self._paths):
            self._read(path, [view[number * self._nbytes : (number + 1) * self._nbytes]])

    def place(self) -> None:
        """Read each to the places where its arrays belong."""
        for path, places in zip(self._paths, self._places, strict=True):
            self._read(path, places)

    def verify(self) -> None:
        """The checksum of each, where it lies after `place`."""
        for places in self._places:
            checksum = xxhash.xxh3_128()
            for part in places:
                checksum.update(part)
            checksum.digest()

    def _read(self, path: str, buffers: Sequence[memoryview]) -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.readv(fd, buffers)
        finally:
            os.close(fd)
