"""What kvcache-storage-sqlite offers. Every `kvcache` command imports this module, so it imports nothing of the backend."""

from pydantic import Field

from kvcache_core.registry.descriptors import PluginOptions, StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl


class SqliteOptions(PluginOptions):
    """What may stand beside `kind: sqlite` in a configuration file."""

    path: str = Field(min_length=1, description="database file, created when it is missing; its folder has to exist")


@hookimpl
def kvcache_storage_backends() -> list[StorageBackendDescriptor]:
    return [
        StorageBackendDescriptor(
            name="sqlite",
            summary="pages as rows of one SQLite database",
            factory="kvcache_storage_sqlite.store:SqliteStorage",
            options=SqliteOptions,
            capabilities=frozenset({"persistent", "scan", "shared"}),
            flags=(("path", "--hicache-storage-path"),),
        )
    ]
