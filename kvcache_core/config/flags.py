"""Command-line flags, generated from the models, for our own command line and for a host's argparse parser.

Every field of CacheConfig is `--field-name`, every field of its section `hicache` is `--hicache-field-name`, storage plugins add
flags for options of theirs, and `--set a.b=value` reaches everything, the sections of other packages included. A flag stores an
`Override` in the order of the command line; nothing is validated here, so that a wrong flag and a wrong line in the file are
reported together.

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_cache_flags(parser)
    args = parser.parse_args()
    loaded = config_from_args(args, "cache.yaml")
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from kvcache_core.config.load import LoadedConfig, load_config
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.config.problems import Loc
from kvcache_core.config.sources import STORAGE, Override
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.known import Kind
from kvcache_core.registry.registry import Registry

DESTINATION = "cache_overrides"
"""The attribute of the parsed namespace that holds the overrides."""

_KEY = re.compile(r"^[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*$")


class _Record(argparse.Action):
    """Appends an Override for the field that the flag was made for."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        *,
        loc: Loc,
        is_yaml: bool,
        by_kind: Mapping[str, str] | None = None,
        metavar: str | None = None,
        help: str | None = None,
    ) -> None:
        super().__init__(option_strings, dest, metavar=metavar, help=help)
        self._loc = loc
        self._is_yaml = is_yaml
        self._by_kind = by_kind

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        flag = option_string or self.option_strings[0]
        _append(namespace, Override(self._loc, values, flag, self._is_yaml, self._by_kind))


class _RecordSet(argparse.Action):
    """Appends the Override that `--set a.b=value` spells out."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        key, equals, text = str(values).partition("=")
        if not equals or not _KEY.match(key):
            raise argparse.ArgumentError(self, f"needs KEY=VALUE with a key such as hicache.ratio, not {values!r}")
        _append(namespace, Override(tuple(key.split(".")), text, f"{option_string or self.option_strings[0]} {key}"))


def add_cache_flags(parser: argparse.ArgumentParser, registry: Registry | None = None, *, prefix: str = "--") -> None:
    """Add the flags of every field, and of the storage backends in `registry` (default: installed), to a parser.

    Make the parser with `allow_abbrev=False`, so that a flag added by a later plugin cannot change what an abbreviation means.
    `prefix`: for a host that has flags of the same names; with `--kvcache-`, `--hicache-ratio` is `--kvcache-hicache-ratio`.
    """
    registry = default_registry() if registry is None else registry
    group = parser.add_argument_group("cache configuration", "these win over the configuration file")
    for name, field in CacheConfig.model_fields.items():
        if name != "hicache":
            _add(group, f"{prefix}{_dashed(name)}", (name,), field, _choices(name, field, registry))
    for name, field in HiCacheConfig.model_fields.items():
        _add(group, f"{prefix}hicache-{_dashed(name)}", ("hicache", name), field, _choices(name, field, registry))
    for flag, by_kind in _storage_flags(registry).items():
        fields = [registry.storage(kind).descriptor.options.model_fields[name] for kind, name in by_kind.items()]
        group.add_argument(
            prefix + flag.removeprefix("--"),
            action=_Record,
            dest=DESTINATION,
            loc=STORAGE,
            is_yaml=all(_reads_yaml(field) for field in fields),
            by_kind=by_kind,
            metavar=next(iter(by_kind.values())).upper(),
            help=_escaped(f"{fields[0].description or 'option'} (storage: {', '.join(by_kind)})"),
        )
    group.add_argument(
        f"{prefix}set",
        action=_RecordSet,
        dest=DESTINATION,
        metavar="KEY=VALUE",
        help="set any field, such as hicache.ratio=4; VALUE is YAML",
    )


def overrides_from_args(args: argparse.Namespace) -> tuple[Override, ...]:
    """What was given, in the order of the command line; empty when no flag was."""
    return tuple(vars(args).get(DESTINATION) or ())


def config_from_args(args: argparse.Namespace, path: Path | str | None = None, registry: Registry | None = None) -> LoadedConfig:
    """Flags over the file at `path` over defaults. Raises InvalidConfigError, see `load_config`."""
    return load_config(path, overrides_from_args(args), registry)


def _append(namespace: argparse.Namespace, override: Override) -> None:
    setattr(namespace, DESTINATION, [*overrides_from_args(namespace), override])


def _add(group: Any, flag: str, loc: Loc, field: FieldInfo, choices: str | None) -> None:
    default = "" if field.default is None else f" (default: {field.default})"
    text = _escaped(f"{field.description}{default}")
    metavar = choices or _type_name(field)
    group.add_argument(flag, action=_Record, dest=DESTINATION, loc=loc, is_yaml=_reads_yaml(field), metavar=metavar, help=text)


def _choices(name: str, field: FieldInfo, registry: Registry) -> str | None:
    """What may stand after the flag, for the help text only: a wrong value gets a located error, not argparse's."""
    if name == "cache_type":
        return _braced(registry.names(Kind.CACHE_TYPE))
    if name == "storage":
        return _braced(("none", *registry.names(Kind.STORAGE)))
    literals = [value for part in _flat(field.annotation) if get_origin(part) is Literal for value in get_args(part)]
    return _braced(literals) if literals else None


def _storage_flags(registry: Registry) -> Mapping[str, Mapping[str, str]]:
    """By flag, the option it means to each kind: two backends may share a flag such as --hicache-storage-path."""
    flags: dict[str, dict[str, str]] = {}
    for kind in registry.names(Kind.STORAGE):
        for option, flag in registry.storage(kind).descriptor.flags:
            flags.setdefault(flag, {})[kind] = option
    return MappingProxyType({flag: MappingProxyType(by_kind) for flag, by_kind in flags.items()})


def _flat(annotation: Any) -> list[Any]:
    inner = [] if get_origin(annotation) is Literal else [part for arg in get_args(annotation) for part in _flat(arg)]
    return [annotation, *inner]


def _reads_yaml(field: FieldInfo) -> bool:
    """Numbers and switches are read as YAML; text is taken as it stands, so that a path such as `1e3` or `yes` survives."""
    parts = _flat(field.annotation)
    return str not in parts and any(part in (int, float, bool) for part in parts)


def _type_name(field: FieldInfo) -> str:
    parts = _flat(field.annotation)
    return next((part.__name__.upper() for part in parts if part in (int, float, bool)), "VALUE")


def _braced(values: Sequence[str]) -> str:
    return "{" + ",".join(values) + "}" if values else "NAME"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _escaped(text: str) -> str:
    # argparse formats help texts with %.
    return text.replace("%", "%%")
