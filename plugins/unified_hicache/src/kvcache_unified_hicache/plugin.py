"""What kvcache-unified-hicache tells the core. Imports neither jax nor the cache itself."""

from kvcache_core.registry.descriptors import CacheTypeDescriptor, CommandDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_cache_types() -> list[CacheTypeDescriptor]:
    return [
        CacheTypeDescriptor(
            name="unified_radix_cache",
            summary="prefix reuse for any set of components, in device memory and, with hicache, in host memory",
            factory="kvcache_unified_hicache.cache:make",
            tiers=True,
            needs_components=True,
        )
    ]


@hookimpl
def kvcache_commands() -> list[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="storage",
            summary="look into the storage (L3) of a configuration: count, verify and remove pages, test the backend",
            configure="kvcache_unified_hicache.storage.commands.group:configure",
            run="kvcache_unified_hicache.storage.commands.group:run",
        )
    ]
