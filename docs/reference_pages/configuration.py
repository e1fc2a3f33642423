"""docs/reference/configuration.md: every field of a configuration file, its flag, and the tables that decide defaults."""

import argparse
import json
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, Secret, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from kvcache_core.cli import EXIT_STATUSES
from kvcache_core.config.flags import DESTINATION, add_cache_flags, overrides_from_args
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.config.problems import Loc
from kvcache_core.config.resolve import CANDIDATES
from kvcache_core.config.rules import PRESETS
from kvcache_core.config.slot import StorageSlot
from kvcache_core.registry.known import Kind
from kvcache_core.registry.loading import load_target
from kvcache_core.registry.registry import Registry
from reference_pages.markdown import code, page, table
from reference_pages.source import described
from reference_pages.workspace import workspace_registry

INTRODUCTION = """The top level of a file is the cache's configuration, plus sections of installed packages. A field without a
flag is reached with `--set`, such as `--set engine.max_running=4`. [configuration.md](../configuration.md) explains how files,
flags and defaults come together."""

STORAGE = """`storage: NAME` is short for `storage: {kind: NAME}`, and `none` is L1 + L2 alone. What stands beside `kind` belongs
to the storage plugin; `kvcache config schema` prints it for everything that is installed."""

CANDIDATES_TEXT = """Where `cache_type` is not given, the first of which nothing is absent. Candidates without tiers are passed
over when `hicache` is set; `disaggregation_mode: decode` always takes `chunk_cache`."""

_HEADERS = ("field", "type", "default", "flag", "meaning")
_NAMES: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    StorageSlot: "a kind, or a mapping with `kind` and its options",
    HiCacheConfig: "a mapping",
}
_BOUNDS: Mapping[type, tuple[str, str]] = {
    annotated_types.Ge: (">=", "ge"),
    annotated_types.Gt: (">", "gt"),
    annotated_types.Le: ("<=", "le"),
    annotated_types.Lt: ("<", "lt"),
}


def configuration_page() -> str:
    """The page for this core and the plugins of this checkout."""
    registry = workspace_registry()
    presets = [(code(name), *map(code, preset)) for name, preset in PRESETS.items()]
    candidates = [(code(name), ", ".join(map(code, names))) for name, names in CANDIDATES.items()]
    statuses = [(str(status), described(text, f"exit status {status}")) for status, text in EXIT_STATUSES.items()]
    flags = flags_by_field(registry)
    return page(
        "Configuration",
        INTRODUCTION,
        "## The top level",
        model_table(CacheConfig, (), flags),
        "## hicache",
        described(HiCacheConfig.__doc__, "HiCacheConfig"),
        model_table(HiCacheConfig, ("hicache",), flags),
        "## hicache.storage",
        STORAGE,
        *_storage(registry, flags),
        *_sections(registry, flags),
        "## Presets of write_policy",
        "`backup_on` and `persist_on` can be given instead. Without storage nothing is persisted.",
        table(("write_policy", "backup_on", "persist_on"), presets),
        "## Default cache types",
        CANDIDATES_TEXT,
        table(("model class", "candidates"), candidates),
        "## Exit statuses",
        table(("status", "meaning"), statuses),
    )


def model_table(model: type[BaseModel], prefix: Loc, flags: Mapping[Loc, str]) -> str:
    """One row a field, with its flag; raises UndocumentedError."""
    rows = [
        (
            code(name),
            type_text(field),
            default_text(field),
            code(flags[(*prefix, name)]) if (*prefix, name) in flags else "",
            described(field.description, f"{model.__name__}.{name}"),
        )
        for name, field in model.model_fields.items()
    ]
    return table(_HEADERS, rows)


def flags_by_field(registry: Registry) -> dict[Loc, str]:
    """The flag of every field that has one, found by using it."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_cache_flags(parser, registry)
    flags: dict[Loc, str] = {}
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list what was added
        for flag in action.option_strings if action.dest == DESTINATION and action.option_strings != ["--set"] else ():
            (override,) = overrides_from_args(parser.parse_args([flag, "1"]))
            kinds = {} if override.by_kind is None else override.by_kind
            flags |= {(*override.loc, kind, option): flag for kind, option in kinds.items()} or {override.loc: flag}
    return flags


def type_text(field: FieldInfo) -> str:
    """A field's type in words, with its bounds."""
    bounds = [f"{sign} {getattr(bound, name)}" for bound in field.metadata for sign, name in _bounds_of(bound)]
    return ", ".join((" or ".join(dict.fromkeys(_types(field.annotation))), *bounds))


def default_text(field: FieldInfo) -> str:
    """A field's default as YAML spells it."""
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is None else code(json.dumps(value))


def _bounds_of(bound: object) -> Iterator[tuple[str, str]]:
    if type(bound) in _BOUNDS:
        yield _BOUNDS[type(bound)]


def _types(annotation: Any) -> Iterator[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        yield from (code(str(value)) for value in get_args(annotation))
    elif origin in (Union, UnionType, Annotated):
        for part in get_args(annotation)[:1] if origin is Annotated else get_args(annotation):
            yield from _types(part)
    elif isinstance(annotation, type) and issubclass(annotation, (Secret, SecretStr)):
        yield "text, a secret"
    elif origin is tuple:
        yield f"a list of: {' or '.join(_types(get_args(annotation)[0]))}"
    elif annotation is not NoneType:  # a field that may be absent says so by its default
        yield _NAMES.get(annotation) or str(annotation).removeprefix("<class '").removesuffix("'>")


def _storage(registry: Registry, flags: Mapping[Loc, str]) -> Iterator[str]:
    kinds = registry.names(Kind.STORAGE)
    if not kinds:
        yield "No storage backend comes with this version; [plugins.md](../plugins.md) shows how to write one."
    for kind in kinds:
        descriptor = registry.storage(kind).descriptor
        yield f"### {kind}\n\n{described(descriptor.summary, f'storage backend {kind}')}"
        yield model_table(descriptor.options, ("hicache", "storage", kind), flags)


def _sections(registry: Registry, flags: Mapping[Loc, str]) -> Iterator[str]:
    for name in registry.names(Kind.SECTION):
        offer = registry.section(name)
        model: type[BaseModel] = load_target(str(offer.descriptor.section_model), offer.source)
        yield f"## {name}\n\nFrom {offer.source.distribution}. {described(model.__doc__, f'section {name}')}"
        yield model_table(model, (name,), flags)
