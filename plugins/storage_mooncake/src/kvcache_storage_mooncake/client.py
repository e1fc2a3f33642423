"""The library's client and the registered memory that pages go through. Used by one thread at a time, never after `close`: there
the library ends the process.

A stored value is a header, length and checksum, and the page: the library takes no empty value, and whoever reads while another
overwrites may see a part of each. It knows nothing of deadlines.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, final

import numpy as np
import xxhash

from kvcache_core.contracts.storage import Value
from kvcache_storage_mooncake.codes import ABSENT, BUFFER_TOO_SMALL, NOTHING_THERE, error_of

HEADER: Final = struct.Struct("<QQ")
"""Bytes of the page, and their xxh3-64."""

_GUESS: Final = 1 << 16
"""Bytes of a page, before one was seen."""

ENVIRONMENT: Final[Mapping[str, str]] = {
    "MC_RPC_TIMEOUT_MS": "2000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "500",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "2",
    "MC_TCP_STATUS_TIMEOUT_SEC": "3",
    "MC_LOG_LEVEL": "ERROR",
}
"""The library's time-outs can be set in no other way. What is set already stays."""


@final
class MooncakeClient:
    """`capacity`: bytes of registered memory; a page and its header have to fit."""

    def __init__(self, store: Any, capacity: int) -> None:
        """`store`: set up already. Raises OSError."""
        self._store = store
        self._memory = np.zeros(capacity, np.uint8)
        self._view = self._memory.data
        self._base = int(self._memory.ctypes.data)
        self._largest = _GUESS
        self.capacity = capacity
        code = store.register_buffer(self._base, capacity)
        if code:
            raise error_of(code)

    def healthy(self) -> bool:
        return self._store.health_check() == 0

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Raises OSError where nothing can be told of any."""
        codes: list[int] = self._store.batch_is_exist(list(names)) if names else []
        if codes and all(code < 0 for code in codes):
            raise error_of(codes[0])
        return [code == 1 for code in codes]

    def load(self, values: Sequence[Value]) -> list[int]:
        """Copy pages into the memory, as many as fit from the first one on; gives their sizes there, headers included. At least
        the first one has to fit. Not a call: the values are the caller's again when this returns."""
        sizes: list[int] = []
        at = 0
        for value in values:
            nbytes = memoryview(value).nbytes
            size = HEADER.size + nbytes
            if at + size > self.capacity:
                break
            HEADER.pack_into(self._view, at, nbytes, xxhash.xxh3_64_intdigest(value))
            self._view[at + HEADER.size : at + size] = memoryview(value).cast("B") if nbytes else b""
            sizes.append(size)
            at += size
        self._largest = max([self._largest, *sizes])
        return sizes

    def put(self, names: Sequence[str], sizes: Sequence[int], chosen: Sequence[int]) -> list[int]:
        """Store what `load` left there, of those only the `chosen` by number; gives a code for each of them."""
        starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        return self._store.batch_upsert_from(
            [names[n] for n in chosen], [self._base + starts[n] for n in chosen], [sizes[n] for n in chosen]
        )

    @property
    def at_once(self) -> int:
        """How many pages one `get` takes, by the largest one that was seen."""
        return max(1, self.capacity // self._largest)

    def get(self, names: Sequence[str]) -> tuple[list[bytes | None], list[int]]:
        """At most `at_once` pages: each one or None, and the codes of those that failed. A page that is not whole is None."""
        slot = min(self._largest, self.capacity)
        found, errors, longer = self._get(names, slot)
        for number in longer:
            size: int = self._store.get_size(names[number])
            if HEADER.size <= size <= self.capacity:
                self._largest = max(self._largest, size)
                [found[number]], more, _ = self._get([names[number]], size)
                errors += more
        return found, errors

    def remove(self, names: Sequence[str]) -> list[int]:
        """Gives the codes of those that could not be removed. By force: having asked for a page is to keep it for seconds."""
        codes: list[int] = self._store.batch_remove(list(names), True) if names else []
        return [code for code in codes if code not in (0, ABSENT)]

    def close(self) -> None:
        self._store.close()

    def _get(self, names: Sequence[str], slot: int) -> tuple[list[bytes | None], list[int], list[int]]:
        n = len(names)
        codes: list[int] = self._store.batch_get_into(list(names), [self._base + i * slot for i in range(n)], [slot] * n)
        found = [self._page(i * slot, code) if code > 0 else None for i, code in enumerate(codes)]
        longer = [i for i, code in enumerate(codes) if code == BUFFER_TOO_SMALL]
        return found, [code for code in codes if code < 0 and code not in NOTHING_THERE | {BUFFER_TOO_SMALL}], longer

    def _page(self, at: int, size: int) -> bytes | None:
        if size < HEADER.size:
            return None
        nbytes, checksum = HEADER.unpack_from(self._view, at)
        page = bytes(self._view[at + HEADER.size : at + size])
        return page if len(page) == nbytes and xxhash.xxh3_64_intdigest(page) == checksum else None


def set_up(hostname: str, metadata: str, segment_bytes: int, buffer_bytes: int, master: str) -> MooncakeClient:
    """Import the library and make a client. Without a master it does not return.

    Raises ImportError: the library or what it needs of the system is missing. Raises OSError.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Only now: it starts threads, and takes over the signals of crashes.
    library: Any = import_module("mooncake.store")
    store = library.MooncakeDistributedStore()
    code: int = store.setup(hostname, metadata, segment_bytes, _LIBRARY_BUFFER, "tcp", "", master)
    if code:
        raise error_of(code)
    return MooncakeClient(store, buffer_bytes)


_LIBRARY_BUFFER: Final = 1 << 24
"""Of the calls that are not used here; with none at all the library refuses to start."""
