"""The registry of the running environment, made on first use: the one documented exception to "no global state".

It serves plain Python (`CacheConfig(...)`, `build_kv_cache(config, deps)`, `register_kv_cache(name, constructor)`) where nobody
passes a registry. Everything in the core also takes one as an argument.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from kvcache_core.registry.registry import Registry


@cache
def default_registry() -> Registry:
    """The same object for the life of the process; plugins installed later are not seen."""
    return Registry.installed()


def register_kv_cache(name: str, constructor: Callable[..., Any], *, tiers: bool = False, needs_components: bool = False) -> None:
    """Offer `constructor(config, deps) -> BasePrefixCache` as a cache type of the default registry.

    Raises DuplicateNameError, ValueError: see `Registry.register_kv_cache`.
    """
    default_registry().register_kv_cache(name, constructor, tiers=tiers, needs_components=needs_components)
