"""A configuration file, and what a command line adds to it, as validated objects, or all that is wrong with them at once.

The top level of a file is the CacheConfig itself plus sections that belong to installed packages (such as `engine`). A section's
model is validated with the context {"folder": the file's folder, "registry": ...}: what paths in it mean is its owner's business.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from kvcache_core.config.located import LocatedDocument
from kvcache_core.config.messages import closest, problems_of
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.config.problems import Loc, Problem
from kvcache_core.config.rules import breaches_of_config
from kvcache_core.config.sources import ConfigSources, Override
from kvcache_core.errors import InvalidConfigError, KVCacheError, PluginError
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.known import OUR_PACKAGES, Kind
from kvcache_core.registry.loading import load_target
from kvcache_core.registry.options import is_model
from kvcache_core.registry.registry import Registry, State


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """`sections`: by name, only those that the file or a flag gave. `folder`: the file's, or the current one without a file."""

    config: CacheConfig
    sections: Mapping[str, BaseModel]
    folder: Path
    path: Path | None
    sources: ConfigSources

    def origin(self, loc: Loc) -> str:
        """Where the value at `loc` came from: a flag, `file:line:col`, or "default"."""
        return self.sources.origin(loc)

    def located(self, error: KVCacheError) -> KVCacheError:
        """The same error with the place of the field it names, if it names one that was given somewhere."""
        place = self.sources.place(error.path) if error.path else None
        if place is None or (place.line is None and not self.sources.gives(error.path)):
            return error
        return InvalidConfigError((Problem(error.path, error.message, place, error.suggestion),))


def load_config(path: Path | str | None, overrides: Sequence[Override] = (), registry: Registry | None = None) -> LoadedConfig:
    """Read `path` (None: defaults and overrides alone). Flags win over the file, the file over defaults.

    Raises:
        InvalidConfigError: everything that is wrong, each with its place: the file missing or not YAML, keys unknown or given
            twice, values of the wrong type, combinations that cannot work, sections whose owner is not installed.
    """
    registry = default_registry() if registry is None else registry
    document = None if path is None else LocatedDocument.read(Path(path))
    folder = Path.cwd() if path is None else Path(path).resolve().parent
    unread = () if document is None else document.problems
    sources = ConfigSources({} if document is None else document.data, document, overrides)
    problems = (*unread, *sources.problems)
    try:
        config, sections = _validate(sources, registry, folder)
    except InvalidConfigError as error:
        # What could not be read stands as None in the data; that None is wrong there as well is no news.
        places = {problem.place for problem in unread}
        more = [problem for problem in error.problems if problem.place not in places]
        raise _all_wrong((*problems, *more), sources, registry) from error
    if problems:
        raise _all_wrong(problems, sources, registry)
    return LoadedConfig(config, sections, folder, None if path is None else Path(path), sources)


def _all_wrong(problems: Sequence[Problem], sources: ConfigSources, registry: Registry) -> InvalidConfigError:
    # A cache type is looked up when one is chosen, where a host may have registered it by then. That will not come to pass here,
    # and a user wants to hear of it in one go.
    name, more = sources.data.get("cache_type"), list[Problem]()
    told = any(problem.loc == ("cache_type",) for problem in problems)
    if isinstance(name, str) and not told and (Kind.CACHE_TYPE, name) not in OUR_PACKAGES:
        try:
            registry.cache_type(name)
        except PluginError as error:
            more.append(Problem(("cache_type",), error.message, sources.place(("cache_type",)), error.suggestion))
    return InvalidConfigError(tuple(sorted((*problems, *more), key=_reading_order)))


def config_from_mapping(data: Mapping[str, Any], registry: Registry | None = None) -> CacheConfig:
    """A CacheConfig from plain data, for hosts that have their own files.

    Raises:
        InvalidConfigError: as load_config, without lines; `CacheConfig(**data)` raises pydantic's ValidationError instead.
    """
    registry = default_registry() if registry is None else registry
    return _validate(ConfigSources(data), registry, Path.cwd())[0]


def _validate(sources: ConfigSources, registry: Registry, folder: Path) -> tuple[CacheConfig, Mapping[str, BaseModel]]:
    problems: list[Problem] = []
    own: dict[str, Any] = {}
    sections: dict[str, BaseModel] = {}
    context = {"registry": registry, "folder": folder}
    for key, value in sources.data.items():
        if key in CacheConfig.model_fields:
            own[key] = value
            continue
        try:
            sections[key] = _section(key, value, sources, registry, context)
        except InvalidConfigError as error:
            problems += error.problems
    config = None
    try:
        config = CacheConfig.model_validate(own, context=context)
    except ValidationError as error:
        problems += problems_of(error, CacheConfig, (), sources, registry)
        problems += _more_breaches(own, sources, {(problem.loc, problem.message) for problem in problems})
    if problems or config is None:
        raise InvalidConfigError(tuple(sorted(problems, key=_reading_order)))
    return config, MappingProxyType(sections)


def _more_breaches(own: Mapping[str, Any], sources: ConfigSources, known: set[tuple[Loc, str]]) -> Iterator[Problem]:
    # pydantic asks the rules only when every field is right; a user wants to hear of both in one go.
    for loc, message in breaches_of_config(own):
        if (loc, message) not in known:
            yield Problem(loc, message, sources.place(loc))


def _section(key: str, value: Any, sources: ConfigSources, registry: Registry, context: Mapping[str, Any]) -> BaseModel:
    def refuse(message: str, suggestion: str | None = None) -> InvalidConfigError:
        return InvalidConfigError((Problem((key,), message, sources.place((key,), key=True), suggestion),))

    state = registry.state(Kind.SECTION, key)
    if state is State.ABSENT and (Kind.SECTION, key) not in OUR_PACKAGES:
        raise refuse("unknown key", _meant(key, registry))
    if state is not State.OFFERED:
        raise refuse(registry.trouble(Kind.SECTION, key))
    offer = registry.section(key)
    try:
        model = load_target(str(offer.descriptor.section_model), offer.source)
    except PluginError as error:
        raise refuse(str(error)) from error
    if not is_model(model):
        raise refuse(f"{offer.source} gave a section_model that is no pydantic model: {offer.descriptor.section_model}")
    try:
        return model.model_validate({} if value is None else value, context=dict(context))
    except ValidationError as error:
        raise InvalidConfigError(tuple(problems_of(error, model, (key,), sources, registry))) from error


def _meant(key: str, registry: Registry) -> str | None:
    """What an unknown key of the top level was probably meant to be; fields of `hicache` are often written a level too high."""
    inner = {name: f"hicache.{name}" for name in HiCacheConfig.model_fields}
    close = key if key in inner else closest(key, [*CacheConfig.model_fields, *registry.names(Kind.SECTION), *inner])
    return None if close is None else inner.get(close, close)


def _reading_order(problem: Problem) -> tuple[int, int]:
    place = problem.place
    return (0, 0) if place is None else (place.line or 0, place.column or 0)
