"""What the tests of ObjectStorage share: a server of their own on loopback, and stores below a new prefix for every test."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from kvcache_conformance.s3_servers import ACCESS_KEY, BUCKET, RcloneServer, S3Server, SeaweedServer
from kvcache_conformance.server_process import started
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_object import opening
from kvcache_storage_object.config import ObjectOptions
from kvcache_storage_object.storage import ObjectStorage

SCOPE = StorageScope(model_id="model", page_size=16)


class Store:
    """A prefix of a bucket and what is opened on it."""

    def __init__(self, server: S3Server, closing: ExitStack, prefix: str = "kv") -> None:
        self.server = server
        self.client = client_of(server)
        self.prefix = prefix
        self._closing = closing

    def options(self, **changes) -> dict:
        return self.server.options(self.prefix) | changes

    def objects(self) -> list:
        """What lies below the prefix."""
        return sorted(obstore.list(self.client, self.prefix).collect(), key=lambda meta: meta["path"])

    def all_readable(self) -> bool:
        """Whether the server gives all that lies below the prefix."""
        try:
            return all(obstore.get(self.client, meta["path"]).bytes() is not None for meta in self.objects())
        except BaseError:
            return False

    def takes(self, name: str, value: bytes) -> bool:
        """Store somebody else's object; whether the server took it."""
        try:
            obstore.put(self.client, name, value, use_multipart=False)
        except BaseError:
            return False
        return True

    def open(self, scope: StorageScope = SCOPE, **changes) -> ObjectStorage:
        storage = opening.make(ObjectOptions.model_validate(self.options(**changes)), scope)
        assert isinstance(storage, ObjectStorage)
        self._closing.callback(storage.close)
        return storage


def client_of(server: S3Server) -> S3Store:
    name, secret = ACCESS_KEY
    config = {"endpoint": server.endpoint, "region": "us-east-1", "access_key_id": name, "secret_access_key": secret}
    return S3Store(BUCKET, client_options={"allow_http": True}, config=config, retry_config={"max_retries": 0})


def own_server(folder: Path, **limits: int) -> SeaweedServer:
    """One that a test may stop, kill and fill."""
    return started(lambda: SeaweedServer(folder / secrets.token_hex(4), **limits))


@pytest.fixture(autouse=True)
def no_cloud(monkeypatch):
    """No client asks an address of a cloud, nor takes credentials from the shell that runs the tests."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[SeaweedServer]:
    """One for all tests that leave it running."""
    with started(lambda: SeaweedServer(tmp_path_factory.mktemp("seaweed"))) as server:
        yield server


@pytest.fixture
def client(server) -> S3Store:
    """A client of `server` that knows nothing of pages."""
    return client_of(server)


@pytest.fixture
def store(server) -> Iterator[Store]:
    with ExitStack() as closing:
        yield Store(server, closing, secrets.token_hex(8))


@pytest.fixture
def own_store(tmp_path) -> Iterator[Store]:
    """On a server that the test may stop and kill."""
    with own_server(tmp_path) as server, ExitStack() as closing:
        yield Store(server, closing)


@pytest.fixture
def small_store(tmp_path) -> Iterator[Store]:
    """On a server that is soon full."""
    with own_server(tmp_path, max_volumes=8, volume_megabytes=1) as server, ExitStack() as closing:
        yield Store(server, closing)
        server.kill()  # one that is full takes long to end by itself


@pytest.fixture
def careless_store(tmp_path) -> Iterator[Store]:
    """On a server that ignores create-if-absent."""
    with started(lambda: RcloneServer(tmp_path / secrets.token_hex(4))) as server, ExitStack() as closing:
        yield Store(server, closing)
