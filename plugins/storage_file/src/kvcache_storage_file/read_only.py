"""A root that is only looked into, as `kvcache storage inspect` does it. It knows no limit, no lock and no books."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import final

from kvcache_core.contracts.storage import HiCacheStorage, StoredPage, Value
from kvcache_storage_file.layout import Layout
from kvcache_storage_file.pages import Pages
from kvcache_storage_file.reader import Reader
from kvcache_storage_file.workers import Workers


@final
class ReadOnlyFileStorage(HiCacheStorage):
    """The pages of an existing root, which stays as it is, the times of its files included. Others may write to it meanwhile.
    Thread safe; not to be used after a fork.
    """

    def __init__(self, root: str, layout: Layout, workers: Workers) -> None:
        """`workers` end with it. Raises OSError where there is no folder `root`."""
        if not stat.S_ISDIR(os.stat(root).st_mode):  # noqa: PTH116 - paths are strings in this package, see Layout
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
        self._pages = Pages(root)
        self._reader = Reader(layout, workers, renew=False)
        self._workers = workers
        self._process = os.getpid()
        self._closed = False

    def exists(self, keys: Sequence[str]) -> list[bool]:
        self._check()
        return self._reader.exists(keys)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        self._check()
        return self._reader.get(keys)

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Raises OSError."""
        raise self._refused()

    def delete(self, keys: Sequence[str]) -> None:
        """Raises OSError."""
        raise self._refused()

    def scan(self) -> Iterator[StoredPage]:
        self._check()
        return self._pages.stored()

    def close(self) -> None:
        self._closed = True
        self._workers.close(1.0)

    def _check(self) -> None:
        if self._closed:
            raise ValueError("this storage is closed")
        if os.getpid() != self._process:
            raise RuntimeError("this storage was opened by the parent process: open it again after a fork")

    def _refused(self) -> OSError:
        return OSError(errno.EROFS, "this storage was opened to be read only", self._pages.root)
