"""What the tests of LocalFileStorage share: stores that are closed at the end, pages by number, and small file systems."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kvcache_conformance.storage_numbered import numbered_key
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope
from kvcache_storage_file import storage as files
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import LocalFileStorage

SCOPE = StorageScope(model_id="model", page_size=16)


class Root:
    """A root folder and what is opened on it. `path` may be missing until the first opening."""

    def __init__(self, path: Path, closing: ExitStack) -> None:
        self.path = path
        self._closing = closing

    def open(self, scope: StorageScope = SCOPE, **options) -> LocalFileStorage:
        # A test says itself when it wants a floor: the machine's disk may be fuller than 95 %.
        storage = files.make(FileOptions.model_validate({"path": str(self.path), "min_free_bytes": 0} | options), scope)
        assert isinstance(storage, LocalFileStorage)
        self._closing.callback(storage.close)
        return storage

    def look(self, scope: StorageScope = SCOPE, **options) -> HiCacheStorage:
        """An opener that reads only."""
        storage = files.make(FileOptions.model_validate({"path": str(self.path)} | options), replace(scope, read_only=True))
        self._closing.callback(storage.close)
        return storage

    def file(self, number: int, model: str = "model", page_size: int = 16) -> Path:
        key = numbered_key(number)
        return self.path / model / str(page_size) / key[:2] / f"{key}.npy"

    def age(self, number: int, seconds: float) -> None:
        """Make a page look as if it was used that long ago."""
        used = time.time() - seconds
        os.utime(self.file(number), (used, used))

    def pages(self) -> set[Path]:
        """The files of all pages."""
        return set(self.path.glob("[!.]*/*/??/*.npy"))

    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.pages())

    def temporaries(self) -> list[Path]:
        return sorted(self.path.glob(".kvcache/*/*.tmp"))

    def others(self) -> set[Path]:
        """Files that are neither pages nor the store's own."""
        return {path for path in self.path.rglob("*") if path.is_file() and ".kvcache" not in path.parts} - self.pages()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    with ExitStack() as closing:
        yield Root(tmp_path / "root", closing)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[..., Root]]:
    """Makes a root on a file system of its own, of so many bytes."""
    mounted: list[Path] = []
    with ExitStack() as closing:

        def mount(nbytes: int, name: str = "disk", options: str = "") -> Root:
            place = tmp_path / name
            place.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}{options}", "tmpfs", str(place)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                pytest.skip("a small file system cannot be mounted here: there is no mount command")
            if done.returncode:
                pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
            mounted.append(place)
            return Root(place / "root", closing)

        yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)
