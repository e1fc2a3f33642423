"""The entry point: says that `radix_cache` exists. It imports neither the cache nor the tree."""

from kvcache_core.registry.descriptors import CacheTypeDescriptor
from kvcache_core.registry.hookspecs import hookimpl


@hookimpl
def kvcache_cache_types() -> list[CacheTypeDescriptor]:
    return [
        CacheTypeDescriptor(
            name="radix_cache",
            summary="prefix reuse in device memory for full attention",
            factory="kvcache_radix.cache:make",
            components=frozenset({"full"}),
            tiers=False,
        )
    ]
