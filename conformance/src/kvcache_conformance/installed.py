"""Registries as if certain packages of ours were installed, whole or broken, for tests of resolution and of hosts.

The descriptors say what those of the real packages say; no package is imported, so a test can ask about any combination.
"""

from collections.abc import Sequence

from kvcache_core.registry.descriptors import CacheTypeDescriptor, Descriptor, TreeComponentDescriptor
from kvcache_core.registry.known import Kind, names_of_package
from kvcache_core.registry.records import PluginRecord, PluginSource, Stage
from kvcache_core.registry.registry import Registry

DISTRIBUTIONS = {
    "chunk_cache": "kvcache-chunk",
    "radix_cache": "kvcache-radix",
    "unified_radix_cache": "kvcache-unified-hicache",
    "full": "kvcache-component-full",
    "swa": "kvcache-component-swa",
    "recurrent": "kvcache-component-recurrent",
}
"""Cache types and components of ours, and their packages."""

_CACHE_TYPES = {
    "chunk_cache": CacheTypeDescriptor(name="chunk_cache", summary="no reuse", factory="chunk:make"),
    "radix_cache": CacheTypeDescriptor(
        name="radix_cache", summary="one device tier", factory="radix:make", components=frozenset({"full"})
    ),
    "unified_radix_cache": CacheTypeDescriptor(
        name="unified_radix_cache", summary="all tiers", factory="unified:make", tiers=True, needs_components=True
    ),
}


def record_of(name: str, *, broken: bool = False) -> PluginRecord:
    """What discovery finds for our package that provides `name`; a broken one fails at its import."""
    source = PluginSource(name, f"{name}.plugin", "kvcache.v1", DISTRIBUTIONS[name], "0.1.0")
    if broken:
        error = "ModuleNotFoundError: No module named 'zstd'"
        return PluginRecord(source, Stage.IMPORT, error, claims=names_of_package(DISTRIBUTIONS[name]))
    cache_type = _CACHE_TYPES.get(name)
    offer: tuple[Kind, Descriptor] = (
        (Kind.COMPONENT, TreeComponentDescriptor(name=name, summary="a component", factory=f"{name}:make"))
        if cache_type is None
        else (Kind.CACHE_TYPE, cache_type)
    )
    return PluginRecord(source, offers=(offer,))


def registry_of(*names: str, broken: Sequence[str] = (), more: Sequence[PluginRecord] = ()) -> Registry:
    """The registry of an environment with our packages for `names`, broken ones for `broken`, and `more` plugins."""
    return Registry([*map(record_of, names), *(record_of(name, broken=True) for name in broken), *more])
