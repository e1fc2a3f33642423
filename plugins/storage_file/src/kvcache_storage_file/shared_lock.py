"""Mutual exclusion among the threads of a process and among processes. It does not know what it protects."""

import fcntl
import os
import threading
from typing import final


@final
class SharedLock:
    """A context manager. The system releases it with the process, so nobody is left waiting for a killed one. Not reentrant."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        # flock belongs to the descriptor, which all threads share.
        self._threads = threading.Lock()

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        os.close(self._fd)
