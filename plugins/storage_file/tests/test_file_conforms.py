"""The whole kit for storage backends on LocalFileStorage, with the files themselves as raw access."""

from pathlib import Path

from kvcache_conformance.storage_kit import RawStorage
from kvcache_conformance.storage_tests import InstalledStorageTests


class RawFiles(RawStorage):
    """The files of one scope, found by their names."""

    def __init__(self, root: Path, model_folder: str, page_size: int) -> None:
        self.folder = root / model_folder / str(page_size)

    def read(self, key: str) -> bytes | None:
        file = self._file(key)
        return file.read_bytes() if file.exists() else None

    def write(self, key: str, value: bytes) -> None:
        self._file(key).parent.mkdir(parents=True, exist_ok=True)
        self._file(key).write_bytes(value)

    def remove(self, key: str) -> None:
        self._file(key).unlink()

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npy"


class TestFileStorage(InstalledStorageTests):
    kind = "file"

    def options(self, place):
        return {"path": str(place / "pages")}

    def raw(self, place, scope):
        return RawFiles(place / "pages", scope.model_id, scope.page_size)
