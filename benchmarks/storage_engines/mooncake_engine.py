"""Mooncake Store over TCP with a master and one holder of pages, and its library's batch calls on registered memory, in the
thread that calls: nothing is faster with it. The library's environment is set as the backend sets it, for both.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from kvcache_conformance.mooncake_servers import MooncakeHolder, MooncakeMaster
from kvcache_conformance.server_process import started
from kvcache_storage_mooncake.client import ENVIRONMENT
from storage_engines.engine import Engine, Library

BUFFER_BYTES = 64 * 2**20
"""The backend's default, and larger than a batch: one call each."""
HOLDER_MEGABYTES = 2048
"""A round is deleted before the next one; the store evicts at 90 %."""


class RegisteredMemory(Library):
    """Nothing is copied: pages go out from where they are, which is registered when it is first seen, and come into a buffer that
    the next `get` writes over. Every code is looked at."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._sent: dict[int, tuple[bytes, int]] = {}
        """Pages with where they are, by their identity; kept, so that nothing else comes to be there."""
        self._buffer = np.zeros(BUFFER_BYTES, np.uint8)
        self._view = self._buffer.data
        self._base = int(self._buffer.ctypes.data)
        self._nbytes = 0
        """Of a page, from the last `set`."""
        _expect_zero([store.register_buffer(self._base, BUFFER_BYTES)])

    def set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self._nbytes = len(values[0])
        places = [self._place(value) for value in values]
        _expect_zero(self._store.batch_put_from(_names(keys), places, [self._nbytes] * len(keys)))

    def get(self, keys: Sequence[str]) -> Sequence[Any]:
        nbytes = self._nbytes
        starts = [number * nbytes for number in range(len(keys))]
        codes = self._store.batch_get_into(_names(keys), [self._base + start for start in starts], [nbytes] * len(keys))
        return [self._view[at : at + nbytes] if code == nbytes else None for at, code in zip(starts, codes, strict=True)]

    def exists(self, keys: Sequence[str]) -> Sequence[Any]:
        return [code == 1 for code in self._store.batch_is_exist(_names(keys))]

    def delete(self, keys: Sequence[str]) -> None:
        _expect_zero(self._store.batch_remove(_names(keys), True))

    def close(self) -> None:
        self._store.close()

    def _place(self, value: bytes) -> int:
        if id(value) not in self._sent:
            place = int(np.frombuffer(value, np.uint8).ctypes.data)
            _expect_zero([self._store.register_buffer(place, len(value))])
            self._sent[id(value)] = value, place
        return self._sent[id(value)][1]


def _names(keys: Sequence[str]) -> list[str]:
    return [f"library/{key}" for key in keys]


def _expect_zero(codes: Sequence[int]) -> None:
    bad = [code for code in codes if code]
    assert not bad, f"{len(bad)} of {len(codes)} calls failed, the first with code {bad[0]}"


@contextmanager
def mooncake_engine(folder: Path) -> Iterator[Engine]:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # before the import, as the backend does it
    with (
        started(lambda: MooncakeMaster(folder / "master")) as master,
        started(lambda: MooncakeHolder(folder / "holder", master, HOLDER_MEGABYTES)),
    ):
        store: Any = import_module("mooncake.store").MooncakeDistributedStore()
        options = master.options()
        _expect_zero([store.setup(options["hostname"], "P2PHANDSHAKE", 0, 2**24, "tcp", "", options["master"])])
        library = RegisteredMemory(store)
        # A benchmark's batches are larger than a cache's: no deadline is to cut them.
        yield Engine("mooncake", {**options, "buffer_bytes": BUFFER_BYTES, "timeout": 60.0}, library)
        library.close()
