"""The same pages through a storage backend, sealed and verified, and through its client library without that. It only times."""

import os
import time
from collections.abc import Callable, Sequence

from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import StorageScope
from kvcache_unified_hicache.storage.page_frame import PageFrame
from storage_engines.engine import Engine

DIFFERENT = 16
"""Pages with contents of their own; they are written again and again under other keys."""

ASKED = 2000
"""Keys in one call of `exists`, at least: a few would be done before a clock can tell."""

WHAT = ("set", "get", "exists")
Times = dict[str, float]


class Sides:
    """`pages` of `nbytes`, `batch` of them in a call. Times are seconds of wall time for all pages."""

    def __init__(self, engine: Engine, nbytes: int, pages: int, batch: int) -> None:
        self._ours = StorageOpener(engine.kind, engine.options, StorageScope("bench/model", 16)).open()
        self._library = engine.library
        self._frame = PageFrame([PageArray("kv", "uint8", (nbytes,))])
        # One for each page of a batch: sealed under another key, a page is another's no longer.
        self._values = [self._frame.new_value() for _ in range(batch)]
        for value in self._values:
            self._frame.payload_of(value)[:] = os.urandom(nbytes)
        self._plain = [os.urandom(nbytes) for _ in range(DIFFERENT)]
        keys = [os.urandom(32).hex() for _ in range(pages)]
        self._keys = keys
        self._often = -(-ASKED // pages)
        self._many = keys * self._often
        self._batches = [keys[start : start + batch] for start in range(0, pages, batch)]

    def ours(self) -> Times:
        times = {
            "set": _timed(lambda: self._each(self._seal_and_set)),
            "get": _timed(lambda: self._each(self._get_and_verify)),
            "exists": _timed(lambda: _expect(all(self._ours.exists(self._many)))) / self._often,
        }
        self._ours.delete(self._keys)
        return times

    def library(self) -> Times:
        library, plain = self._library, self._plain
        times = {
            "set": _timed(lambda: self._each(lambda keys: library.set(keys, [plain[at % DIFFERENT] for at in range(len(keys))]))),
            "get": _timed(lambda: self._each(lambda keys: _expect(None not in library.get(keys)))),
            "exists": _timed(lambda: _expect(all(library.exists(self._many)))) / self._often,
        }
        library.delete(self._keys)
        return times

    def close(self) -> None:
        self._ours.close()

    def _each(self, call: Callable[[Sequence[str]], None]) -> None:
        for keys in self._batches:
            call(keys)

    def _seal_and_set(self, keys: Sequence[str]) -> None:
        values = self._values[: len(keys)]
        for key, value in zip(keys, values, strict=True):
            self._frame.seal(key, value)
        self._ours.set(keys, values)

    def _get_and_verify(self, keys: Sequence[str]) -> None:
        for key, value in zip(keys, self._ours.get(keys), strict=True):
            assert value is not None
            self._frame.open(key, value)


def rounds(sides: Sides, n: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of ours and of the library, by what was done. They take turns, and who begins alternates."""
    mine: dict[str, list[float]] = {what: [] for what in WHAT}
    theirs: dict[str, list[float]] = {what: [] for what in WHAT}
    # The first of all makes connections and memory: it is not counted.
    sides.ours()
    sides.library()
    for number in range(n):
        turns = [(sides.ours, mine), (sides.library, theirs)]
        for run, into in turns if number % 2 == 0 else turns[::-1]:
            for what, seconds in run().items():
                into[what].append(seconds)
    return mine, theirs


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _expect(good: bool) -> None:
    assert good, "a page that was stored is not there"
