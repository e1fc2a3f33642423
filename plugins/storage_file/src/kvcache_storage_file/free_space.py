"""What has to stay free on the file system, whoever fills it. It knows no page."""

import os
import threading
import time
from typing import final

LARGEST_DEFAULT = 10 * 2**30
_MEASURE_AGAIN = 0.05
"""Seconds after which the file system is asked again; sooner the less room there was."""


@final
class FreeSpace:
    """The floor under the free space, with the pages this process is writing taken off. Thread safe."""

    def __init__(self, root: str, floor: int | None) -> None:
        """`floor`: bytes; None is 5 % of the file system, at most 10 GiB. Raises OSError."""
        self._root = root
        size = os.statvfs(root)
        self.floor = min(size.f_blocks * size.f_frsize // 20, LARGEST_DEFAULT) if floor is None else floor
        self._lock = threading.Lock()
        self.writing = 0
        self._room = 0
        self._spent = 0
        self._measured = float("-inf")

    def claim(self, nbytes: int) -> int:
        """0: there is room for a page, claimed until `release`. Otherwise the bytes that are missing."""
        with self._lock:
            lacking = self._lacking(nbytes)
            if not lacking:
                self._book(nbytes)
            return lacking

    def insist(self, nbytes: int) -> None:
        """Claim without asking: for a page whose bytes were removed before."""
        with self._lock:
            self._book(nbytes)

    def release(self, nbytes: int) -> None:
        """The page is written, or will not be."""
        with self._lock:
            self.writing -= nbytes

    def free(self) -> int:
        """Bytes that are free now."""
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def _lacking(self, nbytes: int) -> int:
        now = time.monotonic()
        # Others fill the same disk: far from the floor a rough figure does, near it every page asks anew.
        if now - self._measured > _MEASURE_AGAIN or self._spent + nbytes > self._room // 16:
            self._room, self._measured, self._spent = self.free() - self.floor - self.writing, now, 0
        return max(0, nbytes + self._spent - self._room)

    def _book(self, nbytes: int) -> None:
        self.writing += nbytes
        self._spent += nbytes
