"""What is asked of a backend whose server is gone or comes back, and of one in the child of a fork. It knows the contract and no
server; `said_in_a_fork` is imported in other processes again.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from kvcache_conformance.storage_processes import OtherProcess, StorageOpener
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_core.registry.default import default_registry

LONG: Final = 60.0
"""Seconds after which a server counts as not coming back, and a call as hanging."""

_KEY: Final = 64 * "a"
_VALUE: Final = b"value"


def every_call(storage: HiCacheStorage, keys: Sequence[str], *, scans: bool = False) -> list[Callable[[], object]]:
    """Each method that asks or changes pages, with a batch that has something to ask. `scans`: `scan` too, read to its end."""
    scan: list[Callable[[], object]] = [lambda: list(storage.scan())]
    return [
        lambda: storage.exists(keys),
        lambda: storage.get(keys),
        lambda: storage.set(keys, [_VALUE] * len(keys)),
        lambda: storage.delete(keys),
        *(scan if scans else ()),
    ]


def until(check: Callable[[], object]) -> None:
    """Until `check` gives something true: a server that comes back answers with errors at first.

    Raises AssertionError: it does not come back.
    """
    end = time.monotonic() + LONG
    while True:
        with suppress(OSError):
            if check():
                return
        assert time.monotonic() < end, "the server did not come back"


def check_fork_is_refused(opener: StorageOpener) -> None:
    """For a backend whose client does not survive a fork: in the child every call says so, and so does opening another one,
    instead of hanging; the parent goes on. Raises AssertionError."""
    said, found = cast("tuple[list[str], list[bytes | None]]", OtherProcess(said_in_a_fork, opener).result())
    assert said, "the child of the fork hung"
    assert all("does not survive a fork" in text for text in said), said
    assert found == [_VALUE]


def said_in_a_fork(opener: StorageOpener) -> tuple[list[str], list[bytes | None]]:
    """Open it and fork: what the child is told by every call and by opening another one, and what the parent reads afterwards."""
    scans = "scan" in default_registry().storage(opener.kind).descriptor.capabilities
    storage = opener.open()
    storage.set([_KEY], [_VALUE])
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(int(LONG))  # one that hangs ends, and has said nothing
            said = [_said(call) for call in (*every_call(storage, [_KEY], scans=scans), opener.open)]
            storage.close()
            os.write(writing, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        text = told.read()
    os.waitpid(child, 0)
    found = storage.get([_KEY])
    storage.close()
    return json.loads(text or b"[]"), found


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
