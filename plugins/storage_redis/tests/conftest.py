"""What the tests of RedisStorage share: servers that end with the tests, and stores on them that are closed at the end."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from kvcache_conformance.redis_servers import RedisServer, prefix_of, running_cluster, valkey_command
from kvcache_conformance.server_process import LOOPBACK, started
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_redis.config import RedisOptions
from kvcache_storage_redis.opening import make
from kvcache_storage_redis.storage import RedisStorage

SCOPE = StorageScope(model_id="model", page_size=16)


class Stores:
    """Opens stores on servers, with a prefix of the test's own; they are closed at its end."""

    def __init__(self, prefix: str, closing: ExitStack) -> None:
        self.prefix = prefix
        self._closing = closing

    def open(self, server: RedisServer, scope: StorageScope = SCOPE, **options) -> RedisStorage:
        given = {"host": LOOPBACK, "port": server.port, "key_prefix": self.prefix} | options
        storage = make(RedisOptions.model_validate(given), scope)
        self._closing.callback(storage.close)
        return storage

    def look(self, server: RedisServer, **options) -> RedisStorage:
        """An opener that reads only."""
        return self.open(server, replace(SCOPE, read_only=True), **options)

    def open_cluster(self, servers: Sequence[RedisServer], **options) -> RedisStorage:
        others = [f"{LOOPBACK}:{server.port}" for server in servers[1:]]
        return self.open(servers[0], cluster=True, nodes=others, **options)

    def name(self, key: str) -> bytes:
        """What the server calls a page of SCOPE."""
        return f"{self.prefix}:model:16:{key}".encode()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with ExitStack() as closing:
        yield Stores(prefix_of(tmp_path), closing)


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that tests may fill with keys, and nothing else."""
    with started(lambda: RedisServer(valkey_command(), tmp_path_factory.mktemp("valkey"))) as server:
        yield server


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of one test, which may stop, kill and reconfigure it."""
    with started(lambda: RedisServer(valkey_command(), tmp_path / "valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    """Three nodes that tests may fill with keys, and nothing else."""
    with running_cluster(valkey_command(), tmp_path_factory.mktemp("cluster")) as servers:
        yield servers


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[list[RedisServer]]:
    """Three nodes of one test, which may stop and kill them."""
    with running_cluster(valkey_command(), tmp_path / "cluster") as servers:
        yield servers
