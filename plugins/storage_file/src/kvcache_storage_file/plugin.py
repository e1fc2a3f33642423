"""What kvcache-storage-file tells the core."""

from kvcache_core.registry.descriptors import StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl
from kvcache_storage_file.config import FileOptions


@hookimpl
def kvcache_storage_backends() -> list[StorageBackendDescriptor]:
    return [
        StorageBackendDescriptor(
            name="file",
            summary="pages as files in a folder: they outlive the process and may be shared by several",
            factory="kvcache_storage_file.storage:make",
            options=FileOptions,
            capabilities=frozenset({"capacity", "persistent", "scan", "shared"}),
            flags=(("path", "--hicache-storage-path"),),
        )
    ]
