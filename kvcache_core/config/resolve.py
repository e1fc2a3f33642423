"""From a configuration, a model and what is installed to one cache type: a pure function.

The order, each step ending the search or handing on to the next:

1. decode takes `chunk_cache`, and nothing else is ever put in its place.
2. An explicit `cache_type` must be installed, serve the model with the components installed, and have tiers if `hicache` is set.
3. Otherwise the model class has a list of candidates, and the first of which nothing is absent is taken. Absent is skipped and
   logged with its reason; installed but broken is fatal, because a broken plugin must not become a silent hit rate of zero.

`hicache.storage` is looked up last. It imports no factory and builds nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.config.problems import Loc
from kvcache_core.config.rules import DECODE_CACHE, is_decode
from kvcache_core.contracts.model_spec import ComponentSpec, ModelClass, ModelSpec
from kvcache_core.errors import ConfigError, MissingPluginError, PluginError
from kvcache_core.registry.descriptors import CacheTypeDescriptor
from kvcache_core.registry.known import OUR_PACKAGES, Kind
from kvcache_core.registry.registry import Registry, State

CANDIDATES: Mapping[ModelClass, tuple[str, ...]] = MappingProxyType(
    {
        "full_attention": ("unified_radix_cache", "radix_cache"),
        "swa": ("unified_radix_cache", "chunk_cache"),
        "hybrid_recurrent": ("unified_radix_cache", "chunk_cache"),
    }
)
"""RFC-0's defaults by model class; its "before / after H1, H3" is "not installed / installed"."""

USUAL_COMPONENTS: Mapping[ModelClass, tuple[str, ...]] = MappingProxyType(
    {"full_attention": ("full",), "swa": ("full", "swa"), "hybrid_recurrent": ("full", "recurrent")}
)
"""What a model of a class is assumed to bring where no host says it (`config validate` and its like)."""

TIERED = "unified_radix_cache"
"""Our cache type with tiers, named in advice."""


class Step(NamedTuple):
    """One step of a resolution: what was looked at, what became of it ("taken", "skipped", "set", "assumed"), and why."""

    subject: str
    outcome: str
    reason: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.outcome}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Resolution:
    """`config` is the configuration with nothing left to choose; `components` and `storage` are the plugins it needs.

    `components` is empty for a cache type that takes none from plugins.
    """

    config: CacheConfig
    cache_type: str
    provider: str
    components: tuple[str, ...]
    storage: str | None
    steps: tuple[Step, ...]


class _Objection(NamedTuple):
    """Why a cache type cannot be used. Fatal means broken: it stops the search instead of moving on."""

    text: str
    fatal: bool = False
    absent: bool = False
    suggestion: str | None = None


def usual_model(model_class: ModelClass | None) -> ModelSpec:
    """A stand-in where there is no host: the class as configured, full attention otherwise, with its usual components."""
    chosen = model_class or "full_attention"
    return ModelSpec("", "", chosen, tuple(ComponentSpec(name) for name in USUAL_COMPONENTS[chosen]))


def resolve(config: CacheConfig, model: ModelSpec, registry: Registry) -> Resolution:
    """Choose, or say why nothing can be chosen and what would work.

    Raises:
        ConfigError: the configuration contradicts the model, or cannot work with what is installed.
        PluginError: a plugin it needs is missing (with the pip command) or broken (distribution, version, stage, exception).
    """
    if config.model_class not in (None, model.model_class):
        text = f"model_class '{config.model_class}' contradicts the host's model: it is '{model.model_class}'; remove model_class"
        raise ConfigError(text, path=("model_class",))
    steps: list[Step] = []
    offer = registry.cache_type(_choose(config, model, registry, steps))
    descriptor = offer.descriptor
    storage = None
    if config.hicache is not None and config.hicache.storage is not None:
        storage = config.hicache.storage.kind
        try:
            registry.storage(storage)
        except PluginError as error:
            raise type(error)(error.message, path=("hicache", "storage"), suggestion=error.suggestion) from error
    resolved = _resolved(config, model, descriptor.name, steps)
    components = tuple(spec.name for spec in model.components) if descriptor.needs_components else ()
    return Resolution(resolved, descriptor.name, str(offer.source), components, storage, tuple(steps))


def _choose(config: CacheConfig, model: ModelSpec, registry: Registry, steps: list[Step]) -> str:
    tiers = config.hicache is not None
    if is_decode(config.disaggregation_mode):
        objection = _objection(registry, DECODE_CACHE, model, tiers)
        if objection is not None:
            text = f"disaggregation_mode 'decode' needs {DECODE_CACHE}: {objection.text}"
            raise _error(objection, text, ("disaggregation_mode",))
        steps.append(Step(DECODE_CACHE, "taken", "disaggregation_mode is decode, which allows nothing else"))
        return DECODE_CACHE
    if config.cache_type is not None:
        objection = _objection(registry, config.cache_type, model, tiers)
        if objection is not None:
            advice = "" if objection.fatal or objection.absent else _what_works(registry, model, tiers)
            raise _error(objection, objection.text + advice, ("cache_type",))
        steps.append(Step(config.cache_type, "taken", "cache_type names it"))
        return config.cache_type
    return _default(config, model, registry, steps)


def _default(config: CacheConfig, model: ModelSpec, registry: Registry, steps: list[Step]) -> str:
    tiers = config.hicache is not None
    for name in CANDIDATES[model.model_class]:
        objection = _objection(registry, name, model, tiers)
        if objection is None:
            command = _to_install(registry, model) if any(step.subject == TIERED for step in steps) else ""
            advice = f"; for {TIERED}: {command}" if command else ""
            steps.append(Step(name, "taken", f"first default for {model.model_class} of which nothing is absent{advice}"))
            return name
        if objection.fatal:
            text = f"{name}, a default for {model.model_class}, is not passed over, because it is broken: {objection.text}"
            raise PluginError(f"{text}; repair or uninstall it, or set cache_type", path=_deciding(config))
        steps.append(Step(name, "skipped", objection.text))
    why = "".join(f"\n  {step.subject}: {step.reason}" for step in steps)
    with_tiers = " with hicache" if tiers else ""
    advice = _what_works(registry, model, tiers)
    text = f"no default cache type for {model.model_class}{with_tiers} can be used:{why}{advice}"
    raise MissingPluginError(text, path=_deciding(config))


def _deciding(config: CacheConfig) -> Loc:
    """The field to point at where no default can be used: what narrowed the choice, if the user did. `cache_type` would help too,
    but is not there to be pointed at.
    """
    if config.hicache is not None:
        return ("hicache",)
    return ("cache_type",) if config.model_class is None else ("model_class",)


def _objection(registry: Registry, name: str, model: ModelSpec, tiers: bool) -> _Objection | None:
    """The first thing that speaks against a cache type, or None."""
    state = registry.state(Kind.CACHE_TYPE, name)
    if state is not State.OFFERED:
        broken = state is State.BROKEN
        suggestion = registry.suggestion(Kind.CACHE_TYPE, name)
        return _Objection(registry.trouble(Kind.CACHE_TYPE, name), broken, not broken, suggestion)
    descriptor = registry.cache_type(name).descriptor
    if tiers and not descriptor.tiers:
        return _Objection(f"cache type '{name}' has no tiers, so hicache cannot work with it")
    unserved = _unserved(descriptor, model)
    if unserved:
        return _Objection(f"cache type '{name}' cannot serve a model with the component{_s(unserved)} {', '.join(unserved)}")
    if descriptor.needs_components:
        return _component_objection(registry, name, model)
    return None


def _component_objection(registry: Registry, name: str, model: ModelSpec) -> _Objection | None:
    troubles: list[str] = []
    fatal = False
    for spec in model.components:
        state = registry.state(Kind.COMPONENT, spec.name)
        if state is not State.OFFERED:
            troubles.append(registry.trouble(Kind.COMPONENT, spec.name))
            fatal = fatal or state is State.BROKEN
    if not troubles:
        return None
    needs = ", ".join(spec.name for spec in model.components)
    text = f"cache type '{name}' needs the component{_s(model.components)} {needs}: {'; '.join(troubles)}"
    return _Objection(text, fatal, not fatal)


def _unserved(descriptor: CacheTypeDescriptor, model: ModelSpec) -> list[str]:
    served = descriptor.components
    return [] if served is None else [spec.name for spec in model.components if spec.name not in served]


def _what_works(registry: Registry, model: ModelSpec, tiers: bool) -> str:
    """Advice: the installed types that would work, or what to install for one that would."""
    working = [name for name in registry.names(Kind.CACHE_TYPE) if _objection(registry, name, model, tiers) is None]
    if working:
        return "\n  what would work: cache_type " + " or ".join(f"'{name}'" for name in working)
    broken = _broken_on_the_way(registry, model)
    if broken:
        return f"\n  '{TIERED}' would work, but: {'; '.join(broken)}"
    command = _to_install(registry, model)
    return f"\n  what would work: {command}" if command else ""


def _to_install(registry: Registry, model: ModelSpec) -> str:
    """The one pip command for all that the tiered cache lacks for this model; empty where we know of nothing."""
    needed = [(Kind.CACHE_TYPE, TIERED), *((Kind.COMPONENT, spec.name) for spec in model.components)]
    absent = [
        (kind, name) for kind, name in needed if registry.state(kind, name) is State.ABSENT and (kind, name) in OUR_PACKAGES
    ]
    return f"pip install {' '.join(OUR_PACKAGES[each] for each in absent)}" if absent else ""


def _broken_on_the_way(registry: Registry, model: ModelSpec) -> list[str]:
    needed = [(Kind.CACHE_TYPE, TIERED), *((Kind.COMPONENT, spec.name) for spec in model.components)]
    return [registry.trouble(kind, name) for kind, name in needed if registry.state(kind, name) is State.BROKEN]


def _error(objection: _Objection, text: str, path: Loc) -> ConfigError | PluginError:
    if objection.fatal:
        return PluginError(text, path=path)
    return (MissingPluginError if objection.absent else ConfigError)(text, path=path, suggestion=objection.suggestion)


def _resolved(config: CacheConfig, model: ModelSpec, cache_type: str, steps: list[Step]) -> CacheConfig:
    """The same configuration with every choice written down. Built from scratch, so that it is validated again."""
    values: dict[str, Any] = {
        "cache_type": cache_type,
        "disaggregation_mode": config.disaggregation_mode,
        "page_size": config.page_size,
        "model_class": model.model_class,
    }
    if config.hicache is not None:
        values["hicache"] = _resolved_hicache(config.hicache, steps)
    return CacheConfig(**values)


def _resolved_hicache(hicache: HiCacheConfig, steps: list[Step]) -> HiCacheConfig:
    settings = hicache.write_settings
    given = hicache.write_policy or ("own settings" if hicache.backup_on or hicache.persist_on else "the default")
    reason = f"backup_on {settings.backup_on}, persist_on {settings.persist_on}, by {given}"
    if settings.persist_on == "never":
        reason += "; nothing is written to storage" if hicache.storage is None else "; storage is only read, never written"
    steps.append(Step("hicache.write_policy", "set", reason))
    size: dict[str, Any] = {"ratio": hicache.ratio} if hicache.host_bytes is None else {"host_bytes": hicache.host_bytes}
    return HiCacheConfig(
        storage=hicache.storage,
        backup_on=settings.backup_on,
        persist_on=settings.persist_on,
        async_impl=hicache.async_impl,
        host_pool=hicache.host_pool,
        prefetch_threshold=hicache.prefetch_threshold,
        prefetch_timeout=hicache.prefetch_timeout,
        storage_timeout=hicache.storage_timeout,
        persist_timeout=hicache.persist_timeout,
        **size,
    )


def _s(things: object) -> str:
    return "" if isinstance(things, (list, tuple)) and len(things) == 1 else "s"  # pyright: ignore[reportUnknownArgumentType]
