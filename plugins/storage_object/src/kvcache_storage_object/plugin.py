"""What kvcache-storage-object tells the core."""

from kvcache_core.registry.descriptors import StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl
from kvcache_storage_object.config import ObjectOptions


@hookimpl
def kvcache_storage_backends() -> list[StorageBackendDescriptor]:
    return [
        StorageBackendDescriptor(
            name="object",
            summary="pages as objects in S3 or a compatible store, Google Cloud Storage or Azure: for many machines",
            factory="kvcache_storage_object.opening:make",
            options=ObjectOptions,
            capabilities=frozenset({"persistent", "scan", "shared"}),
        )
    ]
