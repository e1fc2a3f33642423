"""The whole kit for storage backends on RedisStorage, with real servers: Valkey, Redis with TLS and a password, and a cluster."""

from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from kvcache_conformance.redis_servers import RedisServer, make_certificates, prefix_of, redis_command
from kvcache_conformance.server_process import LOOPBACK, started
from kvcache_conformance.storage_kit import RawStorage
from kvcache_conformance.storage_tests import InstalledStorageTests


class RawKeys(RawStorage):
    """The keys of one model in the servers, one of which has each."""

    def __init__(self, servers: Sequence[RedisServer], prefix: str) -> None:
        self._servers = servers
        self._prefix = prefix

    def read(self, key: str) -> bytes | None:
        return self._ask("GET", key)

    def write(self, key: str, value: bytes) -> None:
        self._ask("SET", key, value)

    def remove(self, key: str) -> None:
        assert self._ask("DEL", key) == 1

    def _ask(self, command: str, key: str, *more: bytes):
        for server in self._servers[:-1]:
            with suppress(RuntimeError):  # MOVED: another one has it
                return server.ask(command, self._prefix + key, *more)
        return self._servers[-1].ask(command, self._prefix + key, *more)


PATIENT = {"connect_timeout": 10.0, "socket_timeout": 30.0}
"""The usual seconds are short for a busy machine."""


class RedisKit(InstalledStorageTests, ABC):
    """The kit on servers that a fixture gives each test."""

    kind = "redis"
    servers: Sequence[RedisServer]

    def options(self, place):
        return {"host": LOOPBACK, "port": self.servers[0].port, "key_prefix": prefix_of(place), **PATIENT}

    def raw(self, place, scope):
        return RawKeys(self.servers, f"{prefix_of(place)}:{scope.model_id}:{scope.page_size}:")


@pytest.fixture(scope="module")
def locked_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The system's server, with TLS alone and a password."""
    folder = tmp_path_factory.mktemp("redis")
    certificates = make_certificates(folder / "certificates")

    def make() -> RedisServer:
        return RedisServer(redis_command(), folder, password="p@ss/word", certificates=certificates)

    with started(make) as server:
        yield server


class TestOnValkey(RedisKit):
    @pytest.fixture(autouse=True)
    def _servers(self, valkey):
        self.servers = [valkey]


class TestOnAClusterWithTimeToLive(RedisKit):
    @pytest.fixture(autouse=True)
    def _servers(self, cluster):
        self.servers = cluster

    def options(self, place):
        return super().options(place) | {"cluster": True, "ttl_seconds": 1000}


class TestOnRedisWithTlsAndPassword(RedisKit):
    machine_examples = 15

    @pytest.fixture(autouse=True)
    def _servers(self, locked_redis):
        self.servers = [locked_redis]

    def options(self, place: Path):
        (server,) = self.servers
        assert server.certificates is not None
        url = f"rediss://:p%40ss%2Fword@{LOOPBACK}:{server.port}/0"
        return {"url": url, "tls_ca_file": str(server.certificates.authority), "key_prefix": prefix_of(place), **PATIENT}
