"""Pages in dictionaries of this process."""

from collections.abc import Sequence
from typing import Any

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, Value


class ShelvesStorage(HiCacheStorage):
    def __init__(self, shelves: int) -> None:
        self._shelves: list[dict[str, bytes]] = [{} for _ in range(shelves)]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return [key in self._shelf(key) for key in keys]

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._shelf(key).get(key) for key in keys]

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._shelf(key)[key] = bytes(value)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._shelf(key).pop(key, None)

    def _shelf(self, key: str) -> dict[str, bytes]:
        return self._shelves[int(key, 16) % len(self._shelves)]


def open_store(options: Any, scope: StorageScope) -> ShelvesStorage:
    return ShelvesStorage(options.shelves)
