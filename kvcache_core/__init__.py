"""The core of kvcache: contracts, configuration, plugin discovery and one builder. It knows no cache type and no jax.

The names below are imported on first use: `import kvcache_core` alone costs nothing, and the command line pays for no numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcache_core.builder import build_kv_cache
    from kvcache_core.config.load import load_config
    from kvcache_core.config.model import CacheConfig
    from kvcache_core.contracts.model_spec import ComponentSpec, ModelSpec
    from kvcache_core.deps import CacheDeps
    from kvcache_core.registry.default import register_kv_cache

__version__ = "0.1.0"

__all__ = ["CacheConfig", "CacheDeps", "ComponentSpec", "ModelSpec", "build_kv_cache", "load_config", "register_kv_cache"]

_HOMES = {
    "CacheConfig": "kvcache_core.config.model",
    "CacheDeps": "kvcache_core.deps",
    "ComponentSpec": "kvcache_core.contracts.model_spec",
    "ModelSpec": "kvcache_core.contracts.model_spec",
    "build_kv_cache": "kvcache_core.builder",
    "load_config": "kvcache_core.config.load",
    "register_kv_cache": "kvcache_core.registry.default",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvcache_core' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
