"""LocalFileStorage through its contract."""

from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import make

KEY, OTHER = "0f" * 32, "ff" * 32


def test_a_page_comes_back(tmp_path):
    store = make(FileOptions(path=str(tmp_path / "root")), StorageScope(model_id="org/model", page_size=16))
    store.set([KEY], [b"a page"])
    assert store.exists([KEY, OTHER]) == [True, False]
    assert store.get([OTHER, KEY, KEY]) == [None, b"a page", b"a page"]
    assert (tmp_path / "root" / "org%2Fmodel" / "16" / "0f" / f"{KEY}.npy").read_bytes() == b"a page"
    store.delete([KEY, OTHER])
    assert store.exists([KEY]) == [False]
