"""Frozen descriptors: everything a plugin tells the core about itself, without importing what it describes.

A factory is named as "module:attribute" and imported only when it is used, so listing plugins never imports jax. The texts below
the fields are their documentation: `make docs` copies them into docs/reference/hooks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcache_core.registry.options import PluginOptions

__all__ = [
    "API_VERSION",
    "CacheTypeDescriptor",
    "CommandDescriptor",
    "Descriptor",
    "ENTRY_POINT_GROUP",
    "ObserverDescriptor",
    "PluginOptions",
    "StorageBackendDescriptor",
    "TreeComponentDescriptor",
]

API_VERSION = "v1"
ENTRY_POINT_GROUP = f"kvcache.{API_VERSION}"


def __getattr__(name: str) -> Any:
    # Only plugins with options pay for pydantic, and `kvcache --help` only where one of them is installed.
    if name != "PluginOptions":
        raise AttributeError(f"module '{__name__}' has no attribute {name!r}")
    from kvcache_core.registry.options import PluginOptions

    return PluginOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTypeDescriptor:
    """A value of `cache_type`."""

    name: str
    """What stands behind `cache_type:`; lower case letters, digits and underscores."""
    summary: str
    """One line for `kvcache plugins list`."""
    factory: str | Callable[..., Any]
    """Path "module:attribute" of `(config, deps) -> BasePrefixCache`. Only `register_kv_cache` gives a callable itself."""
    components: frozenset[str] | None = None
    """Names of the components it can serve; None is any set."""
    tiers: bool = False
    """Whether it can work with `hicache`."""
    needs_components: bool = False
    """Whether it takes TreeComponents from plugins: then one must be installed for every component of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeComponentDescriptor:
    """A TreeComponent by the name hosts use for its pool (`full`, `swa`, `recurrent`)."""

    name: str
    """The component's name in the host's model and pools."""
    summary: str
    """One line for `kvcache plugins list`."""
    factory: str
    """Path "module:attribute" of `(options, spec, tiers) -> TreeComponent`; `options` is None."""
    options: type[PluginOptions] | None = None
    """None: no configuration has a section for a component. What it has to know, the host's ComponentSpec says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageBackendDescriptor:
    """A value of `hicache.storage.kind`."""

    name: str
    """What stands behind `kind:`; lower case letters, digits and underscores, and not `none`."""
    summary: str
    """One line for `kvcache plugins list` and the JSON schema."""
    factory: str
    """Path "module:attribute" of `(options, scope) -> HiCacheStorage`."""
    options: type[PluginOptions]
    """Validates what stands beside `kind`. It may not have a field `kind`."""
    capabilities: frozenset[str] = frozenset()
    """The optional parts of the conformance kit that the backend passes. `persistent`: pages survive closing and opening again,
    also in another process. `shared`: openers at once, also in several processes, see each other's pages. `scan`: `scan` names
    every page. `capacity`: its option `max_bytes` bounds the bytes that are kept; what was used least recently goes first."""
    flags: tuple[tuple[str, str], ...] = ()
    """Command-line flags for single options: pairs such as ("path", "--hicache-storage-path"). Backends may share a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDescriptor:
    """A sub-command of `kvcache`. What it names is imported only when the command is chosen, or its section validated."""

    name: str
    """The word after `kvcache`; lower case letters, digits and dashes."""
    summary: str
    """One line for `kvcache --help` and `kvcache plugins list`."""
    configure: str
    """Path "module:attribute" of a function that adds the command's arguments to the argparse parser it gets."""
    run: str
    """Path "module:attribute" of a function that gets the parsed arguments and returns the exit status (None is 0)."""
    section: str | None = None
    """A top-level section of the configuration file that the command's package owns; its commands may share one."""
    section_model: str | None = None
    """Path "module:attribute" of the pydantic model of `section`, so that a file is validated as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverDescriptor:
    """An observer of cache events. Every installed one is told; nobody asks for it by name."""

    name: str
    """Its name in log lines and in `kvcache plugins list`."""
    summary: str
    """One line for `kvcache plugins list`."""
    factory: str
    """Path "module:attribute" of a callable that takes nothing and gives a `CacheObserver`."""


Descriptor = CacheTypeDescriptor | TreeComponentDescriptor | StorageBackendDescriptor | CommandDescriptor | ObserverDescriptor
