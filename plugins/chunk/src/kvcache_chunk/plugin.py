"""What kvcache-chunk tells the core. Imports neither jax nor the cache itself."""

from kvcache_core.registry.descriptors import CacheTypeDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_cache_types() -> list[CacheTypeDescriptor]:
    return [
        CacheTypeDescriptor(
            name="chunk_cache",
            summary="no prefix reuse; the only cache of a decode node",
            factory="kvcache_chunk.cache:make",
        )
    ]
