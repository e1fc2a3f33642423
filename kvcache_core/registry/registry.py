"""The snapshot of what is installed, and the names looked up in it. It imports no factory and decides nothing.

A lookup has three answers, and resolution treats them differently: offered, absent (nothing installed has the name), and broken
(an installed plugin has it, or by all that is known should have it, and cannot be used).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from kvcache_core.errors import DuplicateNameError, MissingPluginError, PluginError
from kvcache_core.registry.checks import NAME
from kvcache_core.registry.descriptors import (
    CacheTypeDescriptor,
    CommandDescriptor,
    ObserverDescriptor,
    StorageBackendDescriptor,
    TreeComponentDescriptor,
)
from kvcache_core.registry.discovery import discover, installed_sources
from kvcache_core.registry.known import Kind, Name, names_of_package, pip_command
from kvcache_core.registry.records import HOST_GROUP, PluginRecord, PluginSource, Stage

D = TypeVar("D")

HOST = PluginSource("register_kv_cache", "", HOST_GROUP)
"""The source of cache types that a host registers with a constructor of its own."""


class State(Enum):
    """What a lookup found."""

    OFFERED = auto()
    ABSENT = auto()
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class Offer(Generic[D]):
    """A usable descriptor and whose it is."""

    descriptor: D
    source: PluginSource


class Registry:
    """Plugins as they were found once, plus the cache types a host registers. Not thread-safe while types are registered."""

    def __init__(self, records: Iterable[PluginRecord] = ()) -> None:
        found = list(records)
        self._duplicates = _find_duplicates(found)
        self._records = tuple(self._mark_duplicates(record) for record in found)
        self._offers: dict[Name, Offer[Any]] = {}
        for record in found:
            for kind, descriptor in record.offers:
                self._add((kind, descriptor.name), Offer(descriptor, record.source))
                if isinstance(descriptor, CommandDescriptor) and descriptor.section is not None:
                    self._add((Kind.SECTION, descriptor.section), Offer(descriptor, record.source))

    @classmethod
    def installed(cls) -> "Registry":
        """A snapshot of the running environment."""
        return cls(discover(installed_sources()))

    @property
    def records(self) -> tuple[PluginRecord, ...]:
        """Every plugin found, working or not, in a fixed order."""
        return self._records

    def register_kv_cache(
        self,
        name: str,
        constructor: Callable[..., Any],
        *,
        summary: str = "registered by the host",
        components: frozenset[str] | None = None,
        tiers: bool = False,
        needs_components: bool = False,
    ) -> None:
        """Offer `constructor(config, deps) -> BasePrefixCache` as a cache type, for hosts that bring one without a package.

        `components`, `tiers`, `needs_components`: as in CacheTypeDescriptor.

        Raises:
            DuplicateNameError: the name is offered already, or belongs to a plugin that is installed and broken.
            ValueError: not a name, or not callable.
        """
        if not NAME.match(name):
            raise ValueError(f"a cache type's name must match {NAME.pattern}, not {name!r}")
        if not callable(constructor):
            raise ValueError(f"the constructor of cache type '{name}' must be callable, not {constructor!r}")
        if self.state(Kind.CACHE_TYPE, name) is not State.ABSENT:
            there = self._offers.get((Kind.CACHE_TYPE, name))
            owner = self.trouble(Kind.CACHE_TYPE, name) if there is None else str(there.source)
            raise DuplicateNameError(f"cache type '{name}' is registered already: {owner}")
        descriptor = CacheTypeDescriptor(
            name=name, summary=summary, factory=constructor, components=components, tiers=tiers, needs_components=needs_components
        )
        self._offers[(Kind.CACHE_TYPE, name)] = Offer(descriptor, HOST)

    # -- lookups ----------------------------------------------------------------------------------------------------------------

    def cache_type(self, name: str) -> Offer[CacheTypeDescriptor]:
        """Raises MissingPluginError, DuplicateNameError or PluginError, as every lookup here."""
        return self._require(Kind.CACHE_TYPE, name)

    def component(self, name: str) -> Offer[TreeComponentDescriptor]:
        return self._require(Kind.COMPONENT, name)

    def storage(self, name: str) -> Offer[StorageBackendDescriptor]:
        return self._require(Kind.STORAGE, name)

    def command(self, name: str) -> Offer[CommandDescriptor]:
        return self._require(Kind.COMMAND, name)

    def section(self, name: str) -> Offer[CommandDescriptor]:
        """The command whose package owns the top-level section `name` of a configuration file."""
        return self._require(Kind.SECTION, name)

    def observers(self) -> tuple[Offer[ObserverDescriptor], ...]:
        return tuple(self._offers[(Kind.OBSERVER, name)] for name in self.names(Kind.OBSERVER))

    def names(self, kind: Kind) -> tuple[str, ...]:
        """The usable names of a namespace, sorted."""
        return tuple(sorted(name for of_kind, name in self._offers if of_kind is kind))

    def state(self, kind: Kind, name: str) -> State:
        """Whether `name` is offered, absent, or held by something broken (a duplicate included)."""
        if (kind, name) in self._offers:
            return State.OFFERED
        if (kind, name) in self._duplicates or self._claimants(kind, name):
            return State.BROKEN
        return State.ABSENT

    def trouble(self, kind: Kind, name: str) -> str:
        """Why `name` cannot be used and what to do, for a name that is absent or broken; `suggestion` is not part of it."""
        if (kind, name) in self._duplicates:
            return _duplicate_text(kind, name, self._duplicates[(kind, name)])
        claimants = self._claimants(kind, name)
        if claimants:
            return f"{kind} '{name}': " + "; ".join(record.trouble() for record in claimants)
        command = pip_command(kind, name)
        if command is not None:
            return f"{kind} '{name}' is not installed; install it with: {command}"
        return self._unknown(kind, name)

    def suggestion(self, kind: Kind, name: str) -> str | None:
        """The usable name that was probably meant by one that nobody knows."""
        if self.state(kind, name) is not State.ABSENT or pip_command(kind, name) is not None:
            return None
        close = get_close_matches(name, self.names(kind), n=1)
        return close[0] if close else None

    def check_strict(self) -> None:
        """Raises PluginError if any plugin at all is broken (`--strict-plugins`)."""
        broken = [record.trouble() for record in self._records if not record.ok]
        if broken:
            raise PluginError("broken plugins, and --strict-plugins was given:\n" + "\n".join(f"  {line}" for line in broken))

    # -- inside -----------------------------------------------------------------------------------------------------------------

    def _add(self, name: Name, offer: Offer[Any]) -> None:
        # Two commands of one package may share a section; every other repetition is in `_duplicates` and used by nobody.
        if name not in self._duplicates:
            self._offers.setdefault(name, offer)

    def _mark_duplicates(self, record: PluginRecord) -> PluginRecord:
        clashes = [
            _duplicate_text(kind, name, sources) for (kind, name), sources in self._duplicates.items() if record.source in sources
        ]
        return replace(record, stage=Stage.DUPLICATE, error="; ".join(clashes)) if clashes else record

    def _claimants(self, kind: Kind, name: str) -> list[PluginRecord]:
        return [record for record in self._records if not record.ok and (kind, name) in record.claims]

    def _require(self, kind: Kind, name: str) -> Offer[Any]:
        offer = self._offers.get((kind, name))
        if offer is not None:
            return offer
        text = self.trouble(kind, name)
        if (kind, name) in self._duplicates:
            raise DuplicateNameError(text)
        error = MissingPluginError if self.state(kind, name) is State.ABSENT else PluginError
        raise error(text, suggestion=self.suggestion(kind, name))

    def _unknown(self, kind: Kind, name: str) -> str:
        names = self.names(kind)
        text = f"no installed plugin provides {kind} '{name}'; installed: {', '.join(names) or 'none'}"
        # A stranger's plugin that failed before its hooks spoke may have meant to provide the name: say so instead of hiding it.
        mute = [r.trouble() for r in self._records if not r.ok and not r.offers and not names_of_package(r.source.distribution)]
        return text + "".join(f"; perhaps meant: {line}" for line in mute)


def _duplicate_text(kind: Kind, name: str, sources: tuple[PluginSource, ...]) -> str:
    owners = " and ".join(str(source) for source in sources)
    return f"{kind} '{name}' is offered by {owners}; neither is used, uninstall one of them"


def _find_duplicates(records: Iterable[PluginRecord]) -> Mapping[Name, tuple[PluginSource, ...]]:
    by_name: dict[Name, list[PluginSource]] = {}
    for record in records:
        names: dict[Name, None] = {}
        for kind, descriptor in record.offers:
            names[(kind, descriptor.name)] = None
            if isinstance(descriptor, CommandDescriptor) and descriptor.section is not None:
                names[(Kind.SECTION, descriptor.section)] = None
        for name in names:
            by_name.setdefault(name, []).append(record.source)
    return MappingProxyType({name: tuple(sources) for name, sources in by_name.items() if len(sources) > 1})
