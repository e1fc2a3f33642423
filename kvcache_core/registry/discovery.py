"""Finding plugins so that no plugin can hurt another.

pluggy's own loader stops at the first broken plugin, accepts misspelt hooks, silently drops a second plugin of the same name and
leaves half of a failed one registered. So each plugin gets a plugin manager of its own, its hooks are consumed inside one `try`,
everything it gave is validated, and only then does any of it count. Nothing here raises because of a plugin; it records.
"""

import inspect
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import metadata
from typing import Any, cast

import pluggy

from kvcache_core.errors import PluginError
from kvcache_core.registry.checks import EXPECTED, faults_of
from kvcache_core.registry.descriptors import API_VERSION, ENTRY_POINT_GROUP, Descriptor
from kvcache_core.registry.hookspecs import PROJECT, HookSpecs
from kvcache_core.registry.known import Kind, Name, names_of_package
from kvcache_core.registry.loading import describe_exception, import_target, its_output_aside
from kvcache_core.registry.records import PluginRecord, PluginSource, Stage
from kvcache_core.registry.unreadable import unreadable_packages

ANY_API_GROUP = re.compile(r"^kvcache\.v\d+$")


class _HookFault(Exception):
    """A plugin's hooks are not what the hook specifications ask for. Its text goes into the record."""


def installed_sources() -> list[PluginSource]:
    """The entry points of all API versions in the running environment, without importing any of them.

    Raises:
        PluginError: the entry points of some package, a plugin or not, cannot be read; names the package.
    """
    sources: list[PluginSource] = []
    try:
        everything = metadata.entry_points()
    except Exception as error:  # whatever reading a file of anybody's may raise
        raise PluginError("; ".join(unreadable_packages()) or describe_exception(error)) from error
    for group in everything.groups:
        for entry in everything.select(group=group) if ANY_API_GROUP.match(group) else ():
            name = _field(entry.dist, "Name")
            normal = None if name is None else re.sub(r"[-_.]+", "-", name).lower()
            sources.append(PluginSource(entry.name, entry.value, entry.group, normal, _field(entry.dist, "Version")))
    return sources


def _field(owner: metadata.Distribution | None, field: str) -> str | None:
    # An interrupted uninstall leaves entry points without METADATA, and `owner.name` then is None in spite of its type.
    values = None if owner is None else owner.metadata.get_all(field)
    return values[0] if values else None


def discover(sources: Iterable[PluginSource]) -> list[PluginRecord]:
    """Load each source alone and say what came of it, sorted, so that every process sees the same order."""
    return [_load(source) for source in sorted(sources, key=lambda s: (s.distribution or "", s.name, s.group, s.target))]


def _load(source: PluginSource) -> PluginRecord:
    named = frozenset((kind, source.name) for kind in Kind) | names_of_package(source.distribution)
    if source.group != ENTRY_POINT_GROUP:
        needed = source.group.removeprefix("kvcache.")
        error = f"was built for plugin API {needed}, this kvcache-core has {API_VERSION}; install matching versions of both"
        return PluginRecord(source, Stage.API_VERSION, error, claims=named)
    try:
        with its_output_aside():
            module = import_target(source.target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return PluginRecord(source, Stage.IMPORT, describe_exception(error), claims=named)
    collected: list[tuple[Kind, object]] = []
    try:
        with its_output_aside():
            _collect(module, source.name, collected)
    except _HookFault as fault:
        return PluginRecord(source, Stage.HOOKS, str(fault), claims=named | _names(collected))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return PluginRecord(source, Stage.HOOKS, describe_exception(error), claims=named | _names(collected))
    faults = _validate(collected)
    if faults:
        return PluginRecord(source, Stage.DESCRIPTORS, "; ".join(faults), claims=named | _names(collected))
    return PluginRecord(source, offers=tuple((kind, cast(Descriptor, item)) for kind, item in collected))


def _collect(module: Any, name: str, collected: list[tuple[Kind, object]]) -> None:
    """Call the hooks of one plugin; what they gave before failing stays in `collected`, to know what it would have offered."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    _refuse_strange_hooks(manager, module)
    try:
        manager.register(module, name)
    except pluggy.PluginValidationError as error:
        raise _HookFault(" ".join(str(error).split())) from error
    for hook, (kind, _) in EXPECTED.items():
        # More than one implementation cannot come from one module, so the outer list has at most one element.
        for answer in getattr(manager.hook, hook)():
            if answer is None or isinstance(answer, (str, bytes)):
                raise _HookFault(f"{hook} must give a list of descriptors, not {answer!r}")
            for item in answer:
                collected.append((kind, item))
    if not collected:
        raise _HookFault("offers nothing: no hook gave a descriptor")


def _refuse_strange_hooks(manager: pluggy.PluginManager, module: Any) -> None:
    faults: list[str] = []
    for attribute in dir(module):
        options = manager.parse_hookimpl_opts(module, attribute)
        known = attribute in EXPECTED
        if options is None:
            if known and inspect.isroutine(getattr(module, attribute)):
                faults.append(f"{attribute} is not marked with @hookimpl and would be ignored")
            continue
        if not known:
            close = get_close_matches(attribute, EXPECTED, n=1)
            faults.append(f"unknown hook {attribute}" + (f" (did you mean {close[0]}?)" if close else ""))
        elif options.get("hookwrapper") or options.get("wrapper"):
            faults.append(f"{attribute} may not be a hook wrapper: plugins do not see each other's descriptors")
    if faults:
        raise _HookFault("; ".join(faults))


def _validate(collected: Sequence[tuple[Kind, object]]) -> list[str]:
    expected = dict(EXPECTED.values())
    faults: list[str] = []
    seen: set[Name] = set()
    for kind, item in collected:
        if not isinstance(item, expected[kind]):
            faults.append(f"a hook for {kind}s gave {item!r}, not a {expected[kind].__name__}")
            continue
        descriptor = cast(Descriptor, item)
        try:
            faults.extend(faults_of(kind, descriptor))
        except Exception as error:  # a field of a wrong type: dataclasses do not check
            faults.append(f"a {kind} descriptor is malformed ({describe_exception(error)}): {item!r}")
            continue
        if (kind, descriptor.name) in seen:
            faults.append(f"{kind} '{descriptor.name}' is offered twice")
        seen.add((kind, descriptor.name))
    return faults


def _names(collected: Sequence[tuple[Kind, object]]) -> frozenset[Name]:
    expected = dict(EXPECTED.values())
    return frozenset((kind, cast(Descriptor, item).name) for kind, item in collected if isinstance(item, expected[kind]))
