"""What is known about each installed plugin: where it came from, how far it got, and what it offers."""

from dataclasses import dataclass
from enum import StrEnum

from kvcache_core.registry.descriptors import Descriptor
from kvcache_core.registry.known import Kind, Name

HOST_GROUP = "host"
"""Stands in place of an entry-point group for what a host registers without a package."""


class Stage(StrEnum):
    """How far a plugin got. Everything but `READY` is a failure at that stage."""

    READY = "ready"
    API_VERSION = "api version"
    IMPORT = "import"
    HOOKS = "hooks"
    DESCRIPTORS = "descriptors"
    DUPLICATE = "duplicate name"
    FACTORY = "factory"


@dataclass(frozen=True, slots=True, order=True)
class PluginSource:
    """An entry point and the distribution it belongs to. `target` is "module" or "module:attribute"."""

    name: str
    target: str
    group: str
    distribution: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.group == HOST_GROUP:
            return "the host itself (register_kv_cache)"
        return f"{self.owner} (plugin '{self.name}')"

    @property
    def owner(self) -> str:
        """Distribution and version for people; either may be unknown, as after an interrupted uninstall."""
        if self.distribution is None:
            return "an unknown distribution"
        return f"{self.distribution} {self.version or '(version unknown)'}"


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One plugin after discovery. `offers` is empty unless its hooks were consumed and valid as a whole: never half of them.

    `claims`: the names a broken plugin would have provided, as far as that can be known: what its hooks gave before they failed,
    what the table of our packages says, and, in any namespace, its entry point's own name.
    """

    source: PluginSource
    stage: Stage = Stage.READY
    error: str | None = None
    offers: tuple[tuple[Kind, Descriptor], ...] = ()
    claims: frozenset[Name] = frozenset()

    @property
    def ok(self) -> bool:
        return self.stage is Stage.READY

    def trouble(self) -> str:
        """One line: distribution, version, stage and exception."""
        return f"{self.source} is broken at stage '{self.stage}': {self.error}"
