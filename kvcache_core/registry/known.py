"""What a plugin can provide, and which of our own packages provides what.

The table below is the only source of pip commands: a name that is not in it might belong to anybody, and advice to install a
package of that name would be an invitation to squat on it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Kind(StrEnum):
    """The namespaces of names. Two plugins may not offer the same name in one of them."""

    CACHE_TYPE = "cache type"
    COMPONENT = "tree component"
    STORAGE = "storage backend"
    COMMAND = "command"
    OBSERVER = "observer"
    SECTION = "configuration section"


Name = tuple[Kind, str]

OUR_PACKAGES: Mapping[Name, str] = MappingProxyType(
    {
        (Kind.CACHE_TYPE, "chunk_cache"): "kvcache-chunk",
        (Kind.CACHE_TYPE, "radix_cache"): "kvcache-radix",
        (Kind.CACHE_TYPE, "unified_radix_cache"): "kvcache-unified-hicache",
        (Kind.COMPONENT, "full"): "kvcache-component-full",
        (Kind.COMPONENT, "swa"): "kvcache-component-swa",
        (Kind.COMPONENT, "recurrent"): "kvcache-component-recurrent",
        (Kind.STORAGE, "file"): "kvcache-storage-file",
        (Kind.STORAGE, "redis"): "kvcache-storage-redis",
        (Kind.STORAGE, "object"): "kvcache-storage-object",
        (Kind.STORAGE, "mooncake"): "kvcache-storage-mooncake",
        (Kind.COMMAND, "run"): "kvcache-engine",
        (Kind.COMMAND, "sweep"): "kvcache-engine",
        (Kind.COMMAND, "storage"): "kvcache-unified-hicache",
        (Kind.COMMAND, "conformance"): "kvcache-conformance",
        (Kind.SECTION, "engine"): "kvcache-engine",
    }
)


def pip_command(kind: Kind, name: str) -> str | None:
    """The command that installs our package for `name`, or None when the name is not ours."""
    package = OUR_PACKAGES.get((kind, name))
    return None if package is None else f"pip install {package}"


def names_of_package(distribution: str | None) -> frozenset[Name]:
    """What a distribution of ours is known to provide: a broken one cannot tell us itself."""
    return frozenset(name for name, package in OUR_PACKAGES.items() if package == distribution)
