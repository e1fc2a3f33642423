"""What kvcache-storage-redis tells the core."""

from kvcache_core.registry.descriptors import StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl
from kvcache_storage_redis.config import RedisOptions


@hookimpl
def kvcache_storage_backends() -> list[StorageBackendDescriptor]:
    return [
        StorageBackendDescriptor(
            name="redis",
            summary="pages in a Redis or Valkey server or cluster, shared by machines",
            factory="kvcache_storage_redis.opening:make",
            options=RedisOptions,
            capabilities=frozenset({"persistent", "scan", "shared"}),
            flags=(("url", "--hicache-storage-url"),),
        )
    ]
