"""What kvcache-storage-mooncake tells the core."""

from kvcache_core.registry.descriptors import StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl
from kvcache_storage_mooncake.config import MooncakeOptions


@hookimpl
def kvcache_storage_backends() -> list[StorageBackendDescriptor]:
    return [
        StorageBackendDescriptor(
            name="mooncake",
            summary="pages in the memory of several machines with Mooncake Store, over TCP, in a trusted network",
            factory="kvcache_storage_mooncake.opening:make",
            options=MooncakeOptions,
            capabilities=frozenset({"shared"}),
        )
    ]
