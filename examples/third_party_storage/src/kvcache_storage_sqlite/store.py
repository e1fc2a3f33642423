"""Pages as rows of one SQLite database. It knows neither what is in a page nor who asks for it."""

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, StoredPage, Value
from kvcache_storage_sqlite.plugin import SqliteOptions

BUSY_SECONDS = 10.0
PAGES = "pages (model TEXT, page_size INT, key TEXT, value BLOB, used REAL, PRIMARY KEY (model, page_size, key))"
HERE = "FROM pages WHERE model = ? AND page_size = ? AND key = ?"


class SqliteStorage(HiCacheStorage):
    """One connection behind a lock; openers in other processes wait for each other's transactions."""

    def __init__(self, options: SqliteOptions, scope: StorageScope) -> None:
        self._scope = (scope.model_id, scope.page_size)
        self._lock = threading.Lock()
        # A write-ahead log would be quicker, but it makes files beside the database, even for one who only reads.
        uri = Path(options.path).expanduser().absolute().as_uri() + ("?mode=ro" if scope.read_only else "")
        self._db = sqlite3.connect(uri, timeout=BUSY_SECONDS, check_same_thread=False, uri=True)
        with self._db:
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"CREATE TABLE IF NOT EXISTS {PAGES}")

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return [row is not None for row in self._find("SELECT 1", keys)]

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return [None if row is None else row[0] for row in self._find("SELECT value", keys)]

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        rows = [(*self._scope, key, value, time.time()) for key, value in zip(keys, values, strict=True)]
        with self._lock, self._db:
            self._db.executemany("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?, ?)", rows)

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock, self._db:
            self._db.executemany(f"DELETE {HERE}", [(*self._scope, key) for key in keys])

    def scan(self) -> Iterator[StoredPage]:
        with self._lock:
            rows = self._db.execute("SELECT key, model, page_size, length(value), used FROM pages").fetchall()
        return (StoredPage(*row) for row in rows)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _find(self, what: str, keys: Sequence[str]) -> list[tuple[Any, ...] | None]:
        with self._lock:
            return [self._db.execute(f"{what} {HERE}", (*self._scope, key)).fetchone() for key in keys]
