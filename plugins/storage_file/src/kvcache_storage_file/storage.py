"""LocalFileStorage: pages as files. It sees bytes, never what is in them, and raises where it fails: the caller counts."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import final

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, Value
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.layout import Layout


@final
class LocalFileStorage(HiCacheStorage):
    """One file a page; the last writer wins."""

    def __init__(self, options: FileOptions, scope: StorageScope) -> None:
        root = Path(options.path).expanduser().absolute()
        root.mkdir(parents=True, exist_ok=True)
        self._layout = Layout(str(root), scope.model_id, scope.page_size)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return [Path(self._layout.file(key)).is_file() for key in keys]

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._read(self._layout.file(key)) for key in keys]

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        for key, value in zip(keys, values, strict=True):
            path = Path(self._layout.file(key))
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}.tmp")
            unfinished.write_bytes(value)
            unfinished.replace(path)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            Path(self._layout.file(key)).unlink(missing_ok=True)

    def _read(self, path: str) -> bytes | None:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            return None


def make(options: FileOptions, scope: StorageScope) -> LocalFileStorage:
    """The factory named by the descriptor."""
    return LocalFileStorage(options, scope)
