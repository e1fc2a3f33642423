"""The whole kit of kvcache-conformance, with raw access through a connection of the test's own."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from kvcache_conformance.storage_kit import RawStorage
from kvcache_conformance.storage_tests import InstalledStorageTests
from kvcache_core.contracts.storage import StorageScope

FIND = "FROM pages WHERE model = ? AND page_size = ? AND key = ?"


class RawSqlite(RawStorage):
    """What is in the database, without the backend."""

    def __init__(self, file: Path, scope: StorageScope) -> None:
        self.file = file
        self.scope = (scope.model_id, scope.page_size)

    def read(self, key: str) -> bytes | None:
        with closing(sqlite3.connect(self.file)) as db:
            row = db.execute(f"SELECT value {FIND}", (*self.scope, key)).fetchone()
        return None if row is None else row[0]

    def write(self, key: str, value: bytes) -> None:
        with closing(sqlite3.connect(self.file)) as db, db:
            db.execute("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?, 0)", (*self.scope, key, value))

    def remove(self, key: str) -> None:
        with closing(sqlite3.connect(self.file)) as db, db:
            db.execute(f"DELETE {FIND}", (*self.scope, key))


class TestSqliteStorage(InstalledStorageTests):
    kind = "sqlite"

    def options(self, place: Path) -> Mapping[str, Any]:
        return {"path": str(place / "pages.db")}

    def raw(self, place: Path, scope: StorageScope) -> RawStorage:
        return RawSqlite(place / "pages.db", scope)
