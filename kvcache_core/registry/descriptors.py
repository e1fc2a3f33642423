"""Frozen descriptors: everything a plugin tells the core about itself, without importing what it describes.

A factory is named as "module:attribute" and imported only when it is used, so listing plugins never imports jax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

API_VERSION = "v1"
ENTRY_POINT_GROUP = f"kvcache.{API_VERSION}"


class PluginOptions(BaseModel):
    """Base of the options a plugin takes: unknown keys are errors, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTypeDescriptor:
    """A value of `cache_type`. `factory` gives `(config, deps) -> BasePrefixCache`; None in place of a path is allowed only for
    types a host registers with a constructor of its own.

    `components`: names of the components it can serve; `None` = any set for which components are installed.
    `tiers`: whether it can work with `hicache`. `needs_components`: whether it takes TreeComponents from plugins.
    """

    name: str
    summary: str
    factory: str | Callable[..., Any]
    components: frozenset[str] | None = None
    tiers: bool = False
    needs_components: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeComponentDescriptor:
    """A TreeComponent by the name hosts use for its pool (`full`, `swa`, `recurrent`)."""

    name: str
    summary: str
    factory: str
    options: type[PluginOptions] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageBackendDescriptor:
    """A value of `hicache.storage.kind`. `options` validates what stands beside `kind`. `flags` names command-line flags for
    single options, such as {"path": "--hicache-storage-path"}. `capabilities` are the Optional parts of the conformance kit."""

    name: str
    summary: str
    factory: str
    options: type[PluginOptions]
    capabilities: frozenset[str] = frozenset()
    flags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDescriptor:
    """A sub-command of `kvcache`. `configure` ("module:attribute") gets its argparse parser; `run` gets the parsed arguments and
    returns the exit status. Both modules are imported only when the command is chosen.

    `section` and `section_model` name a top-level section of the configuration file that this command's package owns, so that
    the file can be validated as a whole.
    """

    name: str
    summary: str
    configure: str
    run: str
    section: str | None = None
    section_model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverDescriptor:
    """An observer of cache events. `factory` takes nothing and gives a `CacheObserver`."""

    name: str
    summary: str
    factory: str


Descriptor = CacheTypeDescriptor | TreeComponentDescriptor | StorageBackendDescriptor | CommandDescriptor | ObserverDescriptor
