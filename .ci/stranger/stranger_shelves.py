"""A storage backend `shelves` with two options of its own."""

from kvcache_core.registry.descriptors import PluginOptions, StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl


class ShelvesOptions(PluginOptions):
    room: str
    shelves: int = 3


@hookimpl
def kvcache_storage_backends() -> list[StorageBackendDescriptor]:
    return [
        StorageBackendDescriptor(
            name="shelves", summary="pages on shelves", factory="stranger_shelves_store:open_store", options=ShelvesOptions
        )
    ]
