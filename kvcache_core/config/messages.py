"""pydantic's errors in the words of a configuration file, each with its place and, where one is close, a suggestion."""

import re
import reprlib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvcache_core.config.model import HiCacheConfig
from kvcache_core.config.problems import Loc, Problem
from kvcache_core.config.secrets import masked
from kvcache_core.config.sources import ConfigSources
from kvcache_core.registry.known import Kind
from kvcache_core.registry.registry import Registry, State

_QUOTED = re.compile(r"'([^']*)'")
_MAPPING_TYPES = frozenset({"model_type", "dict_type", "mapping_type", "model_attributes_type"})


def problems_of(
    error: ValidationError, model: type[BaseModel], prefix: Loc, sources: ConfigSources, registry: Registry
) -> Iterator[Problem]:
    """One problem for each error of validating `model` against the data below `prefix`."""
    for detail in error.errors(include_url=False):
        inner = detail["loc"]
        loc = (*prefix, *inner)
        unknown = detail["type"] == "extra_forbidden"
        suggestion = None
        if unknown:
            suggestion = closest(str(inner[-1]), allowed_keys(model, inner[:-1], sources, registry))
        elif detail["type"] == "literal_error":
            suggestion = closest(str(detail["input"]), _QUOTED.findall(detail.get("ctx", {}).get("expected", "")))
        elif detail["type"] == "kvcache":
            suggestion = detail.get("ctx", {}).get("suggestion")
        yield Problem(loc, message_of(detail), sources.place(loc, key=unknown), suggestion)


def message_of(detail: ErrorDetails) -> str:
    """What is wrong, without the path."""
    kind, text = detail["type"], detail["msg"]
    given = reprlib.repr(masked(detail["input"]))  # a stray dash is enough to make a whole mapping the wrong value
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "required key is missing"
    if kind == "kvcache":
        return str(detail.get("ctx", {}).get("text", text))
    if kind in ("value_error", "assertion_error"):
        return text.split(", ", 1)[-1]
    if kind in _MAPPING_TYPES:
        return f"must be a mapping of keys to values, not {given}"
    return f"{text.replace('Input should', 'must')}, not {given}"


def closest(word: str, among: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    found = get_close_matches(word, [name for name in among if name != word], n=1, cutoff=0.6)
    return found[0] if found else None


def allowed_keys(model: type[BaseModel], loc: Loc, sources: ConfigSources, registry: Registry) -> list[str]:
    """The keys that may stand in the mapping at `loc` below `model`."""
    for part in loc:
        if isinstance(part, int):
            continue
        if model is HiCacheConfig and part == "storage":
            return ["kind", *_storage_options(sources, registry)]
        field = model.model_fields.get(part)
        inner = None if field is None else next(_models_in(field.annotation), None)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _storage_options(sources: ConfigSources, registry: Registry) -> list[str]:
    slot: Any = sources.data.get("hicache")
    for key in ("storage", "kind"):
        slot = slot.get(key) if isinstance(slot, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(slot, str) or registry.state(Kind.STORAGE, slot) is not State.OFFERED:
        return []
    return list(registry.storage(slot).descriptor.options.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
