"""Memory for batches that are filled here, used again as soon as the last batch in it is gone.

Fresh memory is the dearest part of a fetch: the system has to clear and map it while it is being written (67 MB: 50 ms in a
virtual machine, where reading as much from the page cache takes 5 ms). It does not know what lies in the memory, nor who asks.
"""

import threading
import weakref
from collections import deque
from mmap import mmap
from typing import final

import numpy as np
import numpy.typing as npt


@final
class SpareMemory:
    """Thread safe. What is spare counts for nobody until it is taken; `trim` bounds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[mmap] = []  # oldest first
        self._nbytes = 0
        # Appending to a deque is atomic: a weak reference's callback runs wherever the last reference was dropped, perhaps in a
        # thread that holds the lock.
        self._returned: deque[mmap] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes that nobody uses."""
        with self._lock:
            self._settle()
            return self._nbytes

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """`nbytes` of memory with any content, as a uint8 array that starts at a page of memory. It is used again once neither
        the array nor anything made over it (a view, a memoryview, an array of jax that took it over) is referenced any more.

        Raises MemoryError or OSError when there is none.
        """
        memory = self._find(nbytes) or mmap(-1, nbytes)
        block = np.frombuffer(memory, np.uint8)
        weakref.finalize(block, self._returned.append, memory).atexit = False
        return block

    def trim(self, limit: int) -> list[mmap]:
        """Give up what is spare beyond `limit` bytes, oldest first. It goes back to the system when the list is dropped."""
        with self._lock:
            self._settle()
            given_up: list[mmap] = []
            while self._nbytes > limit:
                given_up.append(self._spare.pop(0))
                self._nbytes -= len(given_up[-1])
            return given_up

    def _find(self, nbytes: int) -> mmap | None:
        with self._lock:
            self._settle()
            # The latest first: some of it may still be in the processor's caches.
            for at in reversed(range(len(self._spare))):
                if len(self._spare[at]) == nbytes:
                    self._nbytes -= nbytes
                    return self._spare.pop(at)
        return None

    def _settle(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            self._spare.append(memory)
            self._nbytes += len(memory)
