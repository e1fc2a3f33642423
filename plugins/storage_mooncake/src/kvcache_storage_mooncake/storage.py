"""MooncakeStorage: pages in the memory of several machines, by the contract of HiCacheStorage. It sees bytes and never what is in
them; it raises where it fails, and whoever calls it counts.
"""

import errno
import logging
import os
import random
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, final

from kvcache_core.contracts.storage import HiCacheStorage, NotAllStoredError, Value
from kvcache_storage_mooncake.client import HEADER, MooncakeClient
from kvcache_storage_mooncake.codes import TRY_AGAIN, error_of
from kvcache_storage_mooncake.lane import Lane, Turn

log = logging.getLogger(__name__)

_PROCESS: Final = os.getpid()
"""Who has imported this is who may use the library: its threads are not taken along by a fork, and a child hangs."""

_CLOSE_SECONDS: Final = 2.0
_KEYS: Final = 4096
"""Names in one call of `exists` or `remove`."""
_PAGES: Final = 512
"""Pages in one call of `put` or `get`: the library moves them all at once, and of 2,500 small ones more than 400 fail."""
_PAUSE: Final = 0.02


@final
class MooncakeStorage(HiCacheStorage):
    """The last writer of a page wins. Looking at a page keeps it from the store's own eviction for some seconds; what the store
    has evicted, and what a process held that has ended, is absent.

    Every call ends within the time-out. Of a page that has not come by then, or whose holder is gone, `get` says that it is
    absent, unless nothing at all was found: then it raises. Thread safe; not to be used after a fork, nor opened there.
    """

    def __init__(self, client: MooncakeClient, lane: Lane, key_prefix: str, timeout: float, *, read_only: bool) -> None:
        """Owns `client` and `lane`, in which the client was made."""
        self._client = client
        self._lane = lane
        self._prefix = key_prefix
        self._timeout = timeout
        self._read_only = read_only
        self._closed = False
        self._complained = False

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Raises OSError where nothing can be told."""
        found: list[bool] = []
        with self._turn() as turn:
            for names in self._parts(keys, _KEYS):
                found += turn.call(lambda names=names: self._client.exists(names))
        return found

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Raises OSError where no page could be read and not all are simply absent."""
        unique = list(dict.fromkeys(keys))
        found: dict[str, bytes | None] = {}
        error: OSError | None = None
        try:
            with self._turn() as turn:
                while len(found) < len(unique):
                    some = unique[len(found) :][: min(self._client.at_once, _PAGES)]
                    values, codes = turn.call(lambda some=some: self._client.get([self._prefix + key for key in some]))
                    found.update(zip(some, values, strict=True))
                    error = error or (error_of(codes[0]) if codes else None)
        except TimeoutError as late:
            error = late
        if error is not None:
            if not any(value is not None for value in found.values()):
                raise error
            self._complain(error)
        return [found.get(key) for key in keys]

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Raises NotAllStoredError: some were stored; OSError: none was, or it took too long to know."""
        # Of a key that comes twice the last value counts.
        batch = dict(zip(keys, values, strict=True))
        errors: dict[str, OSError] = {}
        fitting: list[str] = []
        for key, value in batch.items():
            if HEADER.size + memoryview(value).nbytes > self._client.capacity:
                errors[key] = OSError(errno.EMSGSIZE, "the page is larger than 'buffer_bytes'")
            else:
                fitting.append(key)
        with self._turn(writes=True) as turn:
            left = fitting
            while left:
                sizes = self._client.load([batch[key] for key in left[:_PAGES]])
                some, left = left[: len(sizes)], left[len(sizes) :]
                failed = self._put(turn, [self._prefix + key for key in some], sizes)
                errors |= {some[n]: error_of(code) for n, code in failed.items()}
        if errors and len(errors) < len(batch):
            first = next(iter(errors.values()))
            raise NotAllStoredError(f"{len(errors)} of {len(batch)} pages were not stored: {first}", errors)
        self._raise_first([*errors.values()], len(batch), "stored")

    def delete(self, keys: Sequence[str]) -> None:
        """Raises OSError for the first page that could not be removed; the others are removed."""
        unique = list(dict.fromkeys(keys))
        errors: list[OSError] = []
        with self._turn(writes=True) as turn:
            for names in self._parts(unique, _KEYS):
                errors += [error_of(code) for code in turn.call(lambda names=names: self._client.remove(names))]
        self._raise_first(errors, len(unique), "removed")

    def close(self) -> None:
        """The pages that this process holds are gone then. A call that hangs is not waited for."""
        if self._closed or not in_this_process():
            self._closed = True
            return
        with suppress(TimeoutError), self._lane.turn(_CLOSE_SECONDS) as turn:
            if not self._closed:
                self._closed = True
                turn.call(self._client.close)
        self._closed = True
        self._lane.end()

    def _put(self, turn: Turn, names: Sequence[str], sizes: Sequence[int]) -> dict[int, int]:
        """Gives the codes of those that failed for good, by number: a store that is evicting, and a page that another one is
        writing, want a little time."""
        chosen: list[int] = list(range(len(names)))
        failed: dict[int, int] = {}
        until = time.monotonic() + self._timeout / 2
        while chosen:
            codes: list[int] = turn.call(partial(self._client.put, names, sizes, chosen))
            patient = time.monotonic() < until
            again = [n for n, code in zip(chosen, codes, strict=True) if patient and code in TRY_AGAIN]
            failed |= {n: code for n, code in zip(chosen, codes, strict=True) if code < 0 and n not in again}
            if again:
                time.sleep(random.uniform(0.5, 1.5) * _PAUSE)  # writers of the same pages are not to meet again
            chosen = again
        return failed

    def _parts(self, keys: Sequence[str], n: int) -> list[list[str]]:
        return [[self._prefix + key for key in keys[start : start + n]] for start in range(0, len(keys), n)]

    @contextmanager
    def _turn(self, *, writes: bool = False) -> Generator[Turn]:
        """The client is never touched without one: once it is closed, it ends the process."""
        self._check(writes=writes)
        with self._lane.turn(self._timeout) as turn:
            self._check()
            yield turn

    def _raise_first(self, errors: Sequence[OSError], n: int, verb: str) -> None:
        if errors:
            errors[0].add_note(f"{len(errors)} of {n} pages were not {verb}")
            raise errors[0]

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            log.warning("pages that cannot be read count as absent (said once): %s", error)

    def _check(self, *, writes: bool = False) -> None:
        if self._closed:
            raise ValueError("this storage is closed")
        check_process()
        if writes and self._read_only:
            raise OSError(errno.EROFS, "this storage was opened to be read only")


def in_this_process() -> bool:
    """Whether the library can be used: False in the child of a fork."""
    return os.getpid() == _PROCESS


def check_process() -> None:
    """Raises RuntimeError in the child of a fork."""
    if not in_this_process():
        raise RuntimeError(
            "the client of Mooncake Store does not survive a fork: start processes with 'spawn', and open it there"
        )
