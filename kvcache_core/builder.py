"""One way to a cache: check what the host brings, resolve, import the factories that were chosen, call them.

The only module that imports what plugins name in their descriptors. It knows no cache type.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvcache_core.component_check import checked_component
from kvcache_core.config.model import CacheConfig
from kvcache_core.config.resolve import Resolution, resolve
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.deps import CacheDeps, CacheObserver, ComponentFactory
from kvcache_core.errors import ConfigError, KVCacheError, PluginError
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.descriptors import CacheTypeDescriptor
from kvcache_core.registry.loading import describe_exception, load_target
from kvcache_core.registry.registry import Offer, Registry

log = logging.getLogger(__name__)


def build_kv_cache(config: CacheConfig, deps: CacheDeps, registry: Registry | None = None) -> BasePrefixCache:
    """Build the cache that `config` asks for, for the model and pools in `deps`.

    The factory gets the resolved configuration (nothing left to choose) and `deps` with `components`, `storage` and `observers`
    filled in. `registry`: default is what is installed, plus what `register_kv_cache` added.

    Raises:
        ConfigError: `config` and `deps` contradict each other, or the combination cannot work.
        PluginError: a plugin that is needed is missing or broken.
    """
    registry = default_registry() if registry is None else registry
    _check(config, deps)
    resolution = resolve(config, deps.model, registry)
    for step in resolution.steps:
        log.info("%s", step)
    offer = registry.cache_type(resolution.cache_type)
    factory = _cache_factory(offer)
    filled = _fill(deps, resolution, registry)
    try:
        cache = factory(resolution.config, filled)
    except KVCacheError:
        raise
    except Exception as error:
        text = f"cache type '{resolution.cache_type}' of {offer.source} failed to build: {describe_exception(error)}"
        raise PluginError(text) from error
    for observer in filled.observers:
        observer.cache_built(cache)
    return cache


def _check(config: CacheConfig, deps: CacheDeps) -> None:
    """Everything in which a configuration and a host, or parts of what the host brings, can contradict each other."""
    if config.page_size != deps.page_size:
        text = f"page_size is {config.page_size} in the configuration, but the host's pools have pages of {deps.page_size} tokens"
        raise ConfigError(text, path=("page_size",))
    names = [spec.name for spec in deps.model.components]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"the host's model must have components with different names, not {names}")
    for what, brought in (("allocators", deps.allocators), ("pools", deps.pools)):
        if set(brought) != set(names):
            raise ConfigError(f"the host's {what} are for {sorted(brought)}, but its model has the components {sorted(names)}")
    if not 0 <= deps.tp_rank < deps.tp_size:
        raise ConfigError(f"tp_rank must be from 0 to tp_size - 1, not {deps.tp_rank} of {deps.tp_size}")
    if deps.components or deps.storage is not None or deps.observers:
        raise ConfigError("components, storage and observers of CacheDeps are filled from plugins; hosts leave them empty")


def _cache_factory(offer: Offer[CacheTypeDescriptor]) -> Callable[..., BasePrefixCache]:
    factory = offer.descriptor.factory
    return load_target(factory, offer.source) if isinstance(factory, str) else factory


def _fill(deps: CacheDeps, resolution: Resolution, registry: Registry) -> CacheDeps:
    components: dict[str, ComponentFactory] = {}
    for name in resolution.components:
        component = registry.component(name)
        components[name] = checked_component(load_target(component.descriptor.factory, component.source), component.source)
    storage = None
    if resolution.storage is not None:
        backend = registry.storage(resolution.storage)
        storage = load_target(backend.descriptor.factory, backend.source)
    return replace(deps, components=components, storage=storage, observers=_observers(registry))


def _observers(registry: Registry) -> tuple[CacheObserver, ...]:
    """Every installed observer. Nobody asked for one by name, so one that cannot be made is logged and left out."""
    made: list[CacheObserver] = []
    for offer in registry.observers():
        name = offer.descriptor.name
        try:
            made.append(GuardedObserver(name, load_target(offer.descriptor.factory, offer.source)()))
        except PluginError as error:
            log.warning("observer '%s' is left out: %s", name, error)
        except Exception as error:
            log.warning("observer '%s' of %s is left out: %s", name, offer.source, describe_exception(error))
    return tuple(made)


class GuardedObserver:
    """Passes events on until the observer raises for the first time: that is logged, and it is not called again."""

    def __init__(self, name: str, observer: CacheObserver) -> None:
        self._name = name
        self._observer: CacheObserver | None = observer

    def cache_built(self, cache: BasePrefixCache) -> None:
        self._tell(lambda observer: observer.cache_built(cache))

    def page_stored(self, key: str, n_bytes: int) -> None:
        self._tell(lambda observer: observer.page_stored(key, n_bytes))

    def page_removed(self, key: str) -> None:
        self._tell(lambda observer: observer.page_removed(key))

    def _tell(self, event: Callable[[CacheObserver], Any]) -> None:
        if self._observer is None:
            return
        try:
            event(self._observer)
        except Exception:
            log.warning("observer '%s' raised and is no longer called", self._name, exc_info=True)
            self._observer = None
