"""A store of real files with a configuration beside it, and `kvcache storage ...` over both."""

import errno
import hashlib
import os
import time

import pytest

from kvcache_conformance.backend_tricks import flipped
from kvcache_core.cli import main
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.loading import load_target
from kvcache_unified_hicache.storage.page_frame import PageFrame

FRAME = PageFrame((PageArray("k.0", "bfloat16", (100,)),))


class Store:
    """A folder with a configuration beside it. Pages are written by the backend; their ages are set from outside."""

    page_bytes = FRAME.file_bytes

    def __init__(self, folder, monkeypatch):
        self.monkeypatch = monkeypatch
        self.root = folder / "pages"
        self.config = folder / "cache.yaml"
        self.config.write_text(f"hicache:\n  storage: {{kind: file, path: {self.root}, min_free_bytes: 0}}\n", encoding="utf-8")
        self.offer = default_registry().storage("file")

    def opened(self, model_id, page_size=16):
        options = self.offer.descriptor.options.model_validate({"path": str(self.root), "min_free_bytes": 0})
        return load_target(self.offer.descriptor.factory, self.offer.source)(options, StorageScope(model_id, page_size))

    def hold(self, model_id, *ages, page_size=16):
        """One page for each age in seconds; gives their keys."""
        keys = []
        for number, age in enumerate(ages):
            key = hashlib.sha256(f"{model_id} {page_size} {number} {age}".encode()).hexdigest()
            value = FRAME.new_value()
            FRAME.seal(key, value)
            backend = self.opened(model_id, page_size)
            backend.set([key], [value])
            backend.close()
            used = time.time() - age
            os.utime(self.file(key), (used, used))
            keys.append(key)
        return keys

    def file(self, key):
        (found,) = self.root.rglob(f"{key}.npy")
        return found

    def spoil(self, key, at=130):
        """Change one bit of a page; it keeps its length."""
        self.file(key).write_bytes(flipped(self.file(key).read_bytes(), at))

    def cannot_be_read(self, key):
        """From here on its file is one of another user's. Planted, because permissions stop no test that runs as root."""
        private, open_file = str(self.file(key)), os.open

        def fails_for_one(path, *arguments, **more):
            if path == private:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return open_file(path, *arguments, **more)

        self.monkeypatch.setattr(os, "open", fails_for_one)

    def left(self):
        return {path.stem for path in self.root.rglob("*.npy")}


@pytest.fixture
def store(tmp_path, monkeypatch):
    return Store(tmp_path, monkeypatch)


@pytest.fixture
def kvcache(store, capsys):
    """Runs `kvcache storage ...` with the store's configuration; gives exit status, standard output and standard error."""

    def run(command, *arguments):
        status = main(["storage", command, str(store.config), *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
