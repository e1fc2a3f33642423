"""The checks a descriptor passes before it is registered. Each returns sentences that say what is wrong; none means good."""

import re
from collections.abc import Iterator

from kvcache_core.registry.descriptors import (
    CacheTypeDescriptor,
    CommandDescriptor,
    Descriptor,
    ObserverDescriptor,
    StorageBackendDescriptor,
    TreeComponentDescriptor,
)
from kvcache_core.registry.known import Kind
from kvcache_core.registry.loading import TARGET

NAME = re.compile(r"^[a-z][a-z0-9_]*$")
COMMAND_NAME = re.compile(r"^[a-z][a-z0-9-]*$")
FLAG = re.compile(r"^--hicache-[a-z][a-z0-9-]*$")

EXPECTED: dict[str, tuple[Kind, type]] = {
    "kvcache_cache_types": (Kind.CACHE_TYPE, CacheTypeDescriptor),
    "kvcache_tree_components": (Kind.COMPONENT, TreeComponentDescriptor),
    "kvcache_storage_backends": (Kind.STORAGE, StorageBackendDescriptor),
    "kvcache_commands": (Kind.COMMAND, CommandDescriptor),
    "kvcache_observers": (Kind.OBSERVER, ObserverDescriptor),
}
"""By hook: the namespace it fills and the descriptor it must give."""

BUILT_IN_COMMANDS = frozenset({"config", "plugins"})
RESERVED_SECTIONS = frozenset({"cache_type", "disaggregation_mode", "page_size", "model_class", "hicache"})
"""The fields of CacheConfig. A test keeps this equal to the model; the registry may not import the configuration."""
RESERVED_FLAGS = frozenset(
    "--hicache-" + name
    for name in (
        *("storage", "ratio", "host-bytes", "write-policy", "backup-on", "persist-on", "async-impl", "host-pool"),
        *("prefetch-threshold", "prefetch-timeout", "storage-timeout", "persist-timeout"),
    )
)
"""The flags of the section `hicache`, kept equal to the model by the same test."""
RESERVED_KINDS = frozenset({"none"})
CAPABILITIES = frozenset({"persistent", "shared", "scan", "capacity"})


def faults_of(kind: Kind, descriptor: Descriptor) -> Iterator[str]:
    """What is wrong with one descriptor of the right type."""
    pattern = COMMAND_NAME if kind is Kind.COMMAND else NAME
    if not pattern.match(descriptor.name):
        yield f"{kind} name {descriptor.name!r} must match {pattern.pattern}"
    if not descriptor.summary.strip() or "\n" in descriptor.summary:
        yield f"{kind} '{descriptor.name}' needs a summary of one line"
    match descriptor:
        case CommandDescriptor():
            yield from _command_faults(descriptor)
        case StorageBackendDescriptor():
            yield from _target_faults(kind, descriptor.name, "factory", descriptor.factory)
            yield from _storage_faults(descriptor)
        case TreeComponentDescriptor():
            yield from _target_faults(kind, descriptor.name, "factory", descriptor.factory)
            if descriptor.options is not None:
                yield f"{kind} '{descriptor.name}' has options, and no configuration could give them: see ComponentSpec"
        case CacheTypeDescriptor() | ObserverDescriptor():
            yield from _target_faults(kind, descriptor.name, "factory", descriptor.factory)


def _target_faults(kind: Kind, name: str, field: str, target: object) -> Iterator[str]:
    if not isinstance(target, str) or not TARGET.match(target):
        yield f"{field} of {kind} '{name}' must be a string 'module:attribute', not {target!r}"


def _options_faults(kind: Kind, name: str, options: object) -> Iterator[str]:
    from kvcache_core.registry.options import PluginOptions

    if not isinstance(options, type) or not issubclass(options, PluginOptions):
        yield f"options of {kind} '{name}' must be a subclass of PluginOptions, not {options!r}"


def _storage_faults(descriptor: StorageBackendDescriptor) -> Iterator[str]:
    if descriptor.name in RESERVED_KINDS:
        yield f"storage backend name '{descriptor.name}' means 'no storage' and cannot be offered"
    faults = list(_options_faults(Kind.STORAGE, descriptor.name, descriptor.options))
    yield from faults
    if faults:
        return
    fields = descriptor.options.model_fields
    if "kind" in fields:
        yield f"options of storage backend '{descriptor.name}' may not have a field 'kind': it names the backend"
    for unknown in sorted(set(descriptor.capabilities) - CAPABILITIES):
        known = ", ".join(sorted(CAPABILITIES))
        yield f"storage backend '{descriptor.name}' declares the capability {unknown!r}, which is none of {known}"
    for field, flag in descriptor.flags:
        if field not in fields:
            yield f"flag {flag} of storage backend '{descriptor.name}' is for the option '{field}', which does not exist"
        if not FLAG.match(flag):
            yield f"flag {flag!r} of storage backend '{descriptor.name}' must match {FLAG.pattern}"
        if flag in RESERVED_FLAGS:
            yield f"flag {flag} of storage backend '{descriptor.name}' is taken by a field of hicache"


def _command_faults(descriptor: CommandDescriptor) -> Iterator[str]:
    if descriptor.name in BUILT_IN_COMMANDS:
        yield f"command '{descriptor.name}' is built in"
    yield from _target_faults(Kind.COMMAND, descriptor.name, "configure", descriptor.configure)
    yield from _target_faults(Kind.COMMAND, descriptor.name, "run", descriptor.run)
    if descriptor.section is None:
        if descriptor.section_model is not None:
            yield f"command '{descriptor.name}' has a section_model but no section"
        return
    if descriptor.section in RESERVED_SECTIONS or not NAME.match(descriptor.section):
        yield f"section {descriptor.section!r} of command '{descriptor.name}' is taken or not a name"
    yield from _target_faults(Kind.COMMAND, descriptor.name, "section_model", descriptor.section_model)
