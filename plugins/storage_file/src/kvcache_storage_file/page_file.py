"""Writing and reading one page's file with as few system calls as there can be. It knows paths and bytes only."""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from kvcache_core.contracts.storage import Value

T = TypeVar("T")

TOUCH_NS = 60 * 10**9
"""A page that is read gets a new time of use when its last one is older than this."""


_IOV_MAX: Final = os.sysconf("SC_IOV_MAX")
"""Buffers that one system call takes."""


def write(path: str, value: Value, used: int) -> int:
    """Write a new file whose time of use is `used` (ns); gives the open descriptor, for `sync` and `close`. On an OSError the
    descriptor is closed and what was written is left to the caller.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(value)
        written = os.write(fd, view)
        while written < view.nbytes:  # a disk that fills takes a part, and says why with the next part
            written += os.write(fd, view.cast("B")[written:])
        # The system's own stamps are as coarse as its clock tick: many pages of one tick would have no order.
        os.utime(fd, ns=(used, used))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(path: str, used: int | None) -> bytes | None:
    """The whole file; None where there is none. Raises OSError. `used`: its new time of use (ns) where the last one is older than
    TOUCH_NS; None: reading is no use."""

    def whole(fd: int, size: int) -> bytes:
        value = os.read(fd, size)
        while len(value) < size and (more := os.read(fd, size - len(value))):
            value += more
        return value

    return _read(path, used, whole)


def read_into(path: str, buffers: Sequence[memoryview], used: int | None) -> int | None:
    """The whole file into `buffers`, one after another; gives its length, None where there is none. Nothing is read of a file
    that is not exactly as long as they are together. Raises OSError. `used`: as for `read`."""

    def whole(fd: int, size: int) -> int:
        if size != sum(map(len, buffers)):
            return size
        read = 0
        for start in range(0, len(buffers), _IOV_MAX):
            some = buffers[start : start + _IOV_MAX]
            read += os.readv(fd, some)
            if read < sum(map(len, buffers[: start + len(some)])):
                break  # what is missing of it, the length tells
        return read

    return _read(path, used, whole)


def _read(path: str, used: int | None, whole: Callable[[int, int], T]) -> T | None:
    """What `whole` makes of an open file and its size; None where there is none. Raises OSError."""
    try:
        # A FIFO in a page's place must not stop the reader for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"not a regular file: {path}")
        value = whole(fd, status.st_size)
        if used is not None and used - status.st_mtime_ns > TOUCH_NS:
            # Another user's file, or a file system that is read only by now: its bytes are as good as any.
            with suppress(OSError):
                os.utime(fd, ns=(used, used))
    finally:
        os.close(fd)
    return value


def is_file(path: str) -> bool:
    """Whether a page's file is there. Raises OSError where that cannot be told."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - paths are strings in this package, see Layout
    except FileNotFoundError:
        return False


def sync_folder(path: str) -> None:
    """What was renamed into the folder survives a power failure from here on."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
