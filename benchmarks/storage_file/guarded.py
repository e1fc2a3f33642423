"""The same pages through the storage guard over LocalFileStorage, the way the cache writes and reads them. It only times."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import make
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.room import Room
from storage_file.sides import Side, in_batches

CLOSE_SECONDS = 5.0


@final
class OneBuffer(Room[Sequence[bool]]):
    """Rows of one piece of memory that every request uses again."""

    def __init__(self, memory: memoryview, nbytes: int) -> None:
        self._memory = memory
        self._nbytes = nbytes

    def parts(self, number: int) -> Sequence[memoryview]:
        return [self._memory[number * self._nbytes : (number + 1) * self._nbytes]]

    def place(self, number: int, payload: memoryview) -> None:
        self.parts(number)[0][:] = payload

    def finish(self, came: Sequence[bool]) -> Sequence[bool]:
        return came


@final
class Guarded(Side):
    """Requests of `request` pages, one after another, with the guard's own settings: calls of 8 MiB on four threads. A page is
    sealed and written, or read into its place and verified there."""

    def __init__(self, folder: Path, nbytes: int, pages: int, request: int) -> None:
        super().__init__(folder, nbytes, pages)
        self._storage = make(FileOptions(path=str(folder)), StorageScope("bench/model", 16))
        self._guard = StorageGuard(self._storage, GuardSettings(), CacheCounters(), ())
        self._frame = PageFrame([PageArray("kv", "uint8", (nbytes,))])
        self._values = [self._frame.new_value() for _ in range(request)]
        for value in self._values:
            self._frame.payload_of(value)[:] = os.urandom(nbytes)
        self._keys = [os.urandom(32).hex() for _ in range(pages)]
        self._request = request
        self._room = OneBuffer(memoryview(bytearray(request * nbytes)), nbytes)

    def write(self, first: int, n: int) -> float:
        start = time.perf_counter()
        for keys in in_batches(self._keys[first : first + n], self._request):

            def sealed(keys: Sequence[str] = keys) -> Sequence[bytearray]:
                values = self._values[: len(keys)]
                for key, value in zip(keys, values, strict=True):
                    self._frame.seal(key, value)
                return values

            self._wait(lambda done, keys=keys, make=sealed: self._guard.store(keys, self.nbytes, make, done))
        return time.perf_counter() - start

    def read(self, first: int, n: int) -> float:
        start = time.perf_counter()
        for keys in in_batches(self._keys[first : first + n], self._request):
            self._wait(lambda done, keys=keys: self._guard.fetch(keys, self._frame, self._room, done))
        return time.perf_counter() - start

    def empty(self) -> None:
        self._storage.delete(self._keys)

    def close(self) -> None:
        super().close()
        self._guard.close(CLOSE_SECONDS)

    def _wait(self, begin: Callable[[Callable[[Sequence[bool] | None], None]], bool]) -> None:
        """One request, until all of its pages have been answered for."""
        answers: list[Sequence[bool] | None] = []
        assert begin(answers.append)
        while not answers:
            self._guard.wait(1.0)
            self._guard.poll()
        assert answers[0] is not None and all(answers[0])
