"""The whole kit for storage backends on RedisStorage, against real servers: Valkey, Redis with TLS and a password, and a cluster."""

from abc import ABC
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from kvcache_conformance.redis_servers import RedisServer, make_certificates, prefix_of, redis_command
from kvcache_conformance.server_process import LOOPBACK, started
from kvcache_conformance.storage_kit import RawStorage
from kvcache_conformance.storage_tests import InstalledStorageTests


class RawKeys(RawStorage):
    """The keys of one model in the servers, one of which has each."""

    def __init__(self, servers: list[RedisServer], prefix: str) -> None:
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


class RedisKit(InstalledStorageTests, ABC):
    """The kit on the servers that a fixture of the class has started."""

    kind = "redis"
    servers: ClassVar[list[RedisServer]]

    def options(self, place):
        return {"host": LOOPBACK, "port": self.servers[0].port, "key_prefix": prefix_of(place)}

    def raw(self, place, scope):
        return RawKeys(self.servers, f"{prefix_of(place)}:{scope.model_id}:{scope.page_size}:")


class TestOnValkey(RedisKit):
    @pytest.fixture(autouse=True, scope="class")
    def _servers(self, request, valkey):
        request.cls.servers = [valkey]


class TestOnValkeyWithTimeToLive(RedisKit):
    @pytest.fixture(autouse=True, scope="class")
    def _servers(self, request, valkey):
        request.cls.servers = [valkey]

    def options(self, place):
        return super().options(place) | {"ttl_seconds": 1000}


class TestOnACluster(RedisKit):
    @pytest.fixture(autouse=True, scope="class")
    def _servers(self, request, cluster):
        request.cls.servers = cluster

    def options(self, place):
        return super().options(place) | {"cluster": True}


class TestOnRedisWithTlsAndPassword(RedisKit):
    @pytest.fixture(autouse=True, scope="class")
    def _servers(self, request, tmp_path_factory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("redis")
        certificates = make_certificates(folder / "certificates")

        def make() -> RedisServer:
            return RedisServer(redis_command(), folder, password="p@ss/word", certificates=certificates)

        with started(make) as server:
            request.cls.servers = [server]
            yield

    def options(self, place: Path):
        (server,) = self.servers
        assert server.certificates is not None
        url = f"rediss://:p%40ss%2Fword@{LOOPBACK}:{server.port}/0"
        return {"url": url, "tls_ca_file": str(server.certificates.authority), "key_prefix": prefix_of(place)}
