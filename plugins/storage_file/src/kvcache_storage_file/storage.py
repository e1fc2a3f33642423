"""LocalFileStorage: pages as files, by the contract of HiCacheStorage. It sees bytes and never what is in them; it raises
where it fails, and whoever calls it counts.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, StoredPage, Value
from kvcache_core.errors import StorageError
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.layout import Layout
from kvcache_storage_file.read_only import ReadOnlyFileStorage
from kvcache_storage_file.reader import Reader
from kvcache_storage_file.root import Root
from kvcache_storage_file.workers import Workers
from kvcache_storage_file.writer import Writer

_CLOSE_SECONDS = 1.0


@final
class LocalFileStorage(HiCacheStorage):
    """One file a page. A page has its name only when it is whole; the last writer wins. Several may be open on one root, in one
    process or in several. Thread safe; not to be used after a fork.
    """

    def __init__(self, options: FileOptions, scope: StorageScope) -> None:
        """Raises OSError where the root cannot be used."""
        root = _root(options)
        self._layout = Layout(root, scope.model_id, scope.page_size)
        self._workers = Workers(options.workers - 1)
        self._opened = Root(root, options.max_bytes, options.min_free_bytes)
        self._writer = Writer(self._opened, self._layout, self._workers, options.durability)
        self._reader = Reader(self._layout, self._workers, renew=True)
        self._process = os.getpid()

    @property
    def temporaries_swept(self) -> int:
        """Unfinished pages of killed processes that were found and removed when the root was opened."""
        return self._opened.swept

    @property
    def counted(self) -> bool:
        """Whether the limit is known to hold. While a large root is being counted, every page is paid for with others."""
        with self._opened.use() as session:
            return not (session.ledger.active and session.ledger.unknown())

    def exists(self, keys: Sequence[str]) -> list[bool]:
        self._check()
        return self._reader.exists(keys)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Raises OSError where no page could be read and not all are simply absent."""
        self._check()
        return self._reader.get(keys)

    def get_into(self, keys: Sequence[str], buffers: Sequence[Sequence[memoryview]]) -> list[int | None]:
        """Raises OSError where no page could be read and not all are simply absent."""
        self._check()
        return self._reader.get_into(keys, buffers)

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Raises what the first page met that could not be stored; the others of the batch are stored."""
        self._check()
        # Of a key that comes twice the last value counts.
        batch = dict(zip(keys, values, strict=True))
        errors = self._writer.store(batch)
        if errors:
            errors[0].add_note(f"{len(errors)} of {len(batch)} pages were not stored")
            raise errors[0]

    def delete(self, keys: Sequence[str]) -> None:
        """Raises what the first page met that could not be removed; the others are removed."""
        self._check()
        places = [self._layout.place(key) for key in keys]

        with self._opened.use() as session:

            def remove(number: int) -> None:
                session.ledger.remove(places[number].path, places[number].shard)

            errors = self._workers.each(len(places), remove)
        if errors:
            raise errors[0]

    def scan(self) -> Iterator[StoredPage]:
        self._check()
        return self._opened.pages.stored()

    def check_integrity(self) -> None:
        """Hold the books against the files. To be called while this opener writes nothing. Raises IntegrityError."""
        with self._opened.use() as session:
            session.room.check_integrity()

    def close(self) -> None:
        """Ends its threads and leaves the root. A call that hangs in the file system is not waited for."""
        self._workers.close(_CLOSE_SECONDS)
        self._opened.close()

    def _check(self) -> None:
        if self._opened.closed:
            raise ValueError("this storage is closed")
        if os.getpid() != self._process:
            raise RuntimeError("this storage was opened by the parent process: open it again after a fork")


def make(options: FileOptions, scope: StorageScope) -> HiCacheStorage:
    """The factory named by the descriptor. Raises StorageError where the folder cannot be used; one who only reads makes none."""
    try:
        if scope.read_only:
            root = _root(options)
            return ReadOnlyFileStorage(root, Layout(root, scope.model_id, scope.page_size), Workers(options.workers - 1))
        return LocalFileStorage(options, scope)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder to put in place of `~`
        raise StorageError(
            f"storage 'file' cannot use the folder {options.path!r}: {_reason(error, options.path)}; "
            "give another one with 'path'",
            path=("hicache", "storage", "path"),
        ) from error


def _reason(error: OSError | RuntimeError, path: str) -> str:
    """What the system says, and of which file or folder: it may be one deep below `path`."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename in (None, path) else f"{error.strerror}: {error.filename}"


def _root(options: FileOptions) -> str:
    """Raises RuntimeError: `~` stands for no folder."""
    return str(Path(options.path).expanduser().absolute())
