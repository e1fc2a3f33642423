"""The builder: what it checks, what it hands to a factory, and what it makes of factories that fail."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from kvcache_chunk.cache import ChunkCache
from kvcache_conformance.installed import registry_of
from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.component import ComponentTiers
from kvcache_core.contracts.model_spec import ComponentSpec, ModelSpec
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.results import Indices
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import ConfigError, KVCacheError, MissingPluginError, PluginError
from kvcache_core.registry.discovery import discover, installed_sources
from kvcache_core.registry.records import PluginSource
from kvcache_core.registry.registry import Registry
from kvcache_core.transfer_queue import TransferQueue

MakePlugin = Callable[..., PluginSource]


class FewPages:
    """An allocator of a handful of pages, enough to account for."""

    total = 4

    def __init__(self) -> None:
        self.n_free = self.total

    def alloc(self, n: int) -> Indices | None:
        return None

    def free(self, indices: Indices) -> None:
        raise AssertionError("nothing was given out")


class OnePool:
    identity = b"test"

    def host_struct(self) -> Any:
        return None

    def page_arrays(self) -> tuple[PageArray, ...]:
        return ()

    def gather(self, buffers: Any, indices: Indices) -> Any:
        return buffers[indices]

    def scatter(self, buffers: Any, indices: Indices, pages: Any) -> Any:
        buffers[indices] = pages
        return buffers


class OnePoolSet:
    def take(self) -> dict[str, Any]:
        return {"full": np.zeros(5)}

    def give(self, buffers: Any) -> None:
        pass


@pytest.fixture
def deps() -> CacheDeps:
    pools = {"full": OnePool()}
    return CacheDeps(
        model=ModelSpec("model", "1", "full_attention"),
        page_size=16,
        allocators={"full": FewPages()},
        pools=pools,
        pool_set=OnePoolSet(),
        queue=TransferQueue(pools),
    )


class Recorder:
    """A constructor that remembers what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[CacheConfig, CacheDeps]] = []

    def __call__(self, config: CacheConfig, deps: CacheDeps) -> BasePrefixCache:
        self.calls.append((config, deps))
        return ChunkCache(deps.allocators, deps.page_size)


def test_builds_the_installed_chunk_cache(deps: CacheDeps):
    cache = build_kv_cache(CacheConfig(disaggregation_mode="decode"), deps, Registry(discover(installed_sources())))
    assert type(cache) is ChunkCache
    assert cache.size("full").total == FewPages.total


def test_factory_gets_the_resolved_configuration(deps: CacheDeps):
    registry, made = Registry(), Recorder()
    registry.register_kv_cache("mine", made, tiers=True)
    build_kv_cache(CacheConfig(cache_type="mine", hicache={"host_bytes": 9}), deps, registry)  # pyright: ignore[reportArgumentType]
    ((config, given),) = made.calls
    assert (config.cache_type, config.model_class) == ("mine", "full_attention")
    assert config.hicache is not None
    assert (config.hicache.backup_on, config.hicache.persist_on, config.hicache.host_bytes) == ("insert", "never", 9)
    assert given == deps


def test_components_storage_and_observers_come_from_plugins(deps: CacheDeps, plugin: MakePlugin):
    source = plugin(
        "parts",
        """
        class Options(PluginOptions):
            path: str = "x"
        def component(options, spec, tiers): ...
        def storage(options, scope): ...
        class Observer:
            seen = []
            def cache_built(self, cache):
                self.seen.append(cache)
        @hookimpl
        def kvcache_tree_components():
            return [TreeComponentDescriptor(name="full", summary="a", factory=f"{__name__}:component")]
        @hookimpl
        def kvcache_storage_backends():
            return [StorageBackendDescriptor(name="shelf", summary="a", factory=f"{__name__}:storage", options=Options)]
        @hookimpl
        def kvcache_observers():
            return [ObserverDescriptor(name="watch", summary="a", factory=f"{__name__}:Observer")]
    """,
    )
    registry, made = Registry(discover([source])), Recorder()
    registry.register_kv_cache("mine", made, tiers=True, needs_components=True)
    config = CacheConfig.model_validate({"cache_type": "mine", "hicache": {"storage": "shelf"}}, context={"registry": registry})
    cache = build_kv_cache(config, deps, registry)
    ((_, given),) = made.calls
    assert {name: getattr(factory, "__name__", None) for name, factory in given.components.items()} == {"full": "component"}
    with pytest.raises(PluginError, match=r"component 'full' of acme-parts 1\.0 .* cannot be made: AttributeError"):
        given.components["full"](None, deps.model.components[0], cast("ComponentTiers", None))
    assert getattr(given.storage, "__name__", None) == "storage"
    assert len(given.observers) == 1
    observer_class = registry.observers()[0].descriptor.factory
    module = __import__(observer_class.partition(":")[0])
    assert module.Observer.seen == [cache]


def test_an_observer_that_raises_is_logged_once_and_not_called_again(
    deps: CacheDeps, plugin: MakePlugin, caplog: pytest.LogCaptureFixture
):
    source = plugin(
        "loud",
        """
        class Observer:
            def cache_built(self, cache):
                raise RuntimeError("too loud")
            page_stored = page_removed = cache_built
        @hookimpl
        def kvcache_observers():
            make = lambda name, target: ObserverDescriptor(name=name, summary="a", factory=f"{__name__}:{target}")
            return [make("loud", "Observer"), make("gone", "Missing")]
    """,
    )
    registry, made = Registry(discover([source])), Recorder()
    registry.register_kv_cache("mine", made)
    with caplog.at_level(logging.WARNING):
        build_kv_cache(CacheConfig(cache_type="mine"), deps, registry)
        ((_, given),) = made.calls
        given.observers[0].page_removed("k")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("observer 'gone' is left out: acme-loud 1.0")
    assert said[1] == "observer 'loud' raised and is no longer called"


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        (CacheConfig(page_size=8), {}, "page_size is 8 in the configuration, but the host's pools have pages of 16 tokens"),
        (CacheConfig(), {"allocators": {}}, "the host's allocators are for [], but its model has the components ['full']"),
        (CacheConfig(), {"pools": {"full": OnePool(), "swa": OnePool()}}, "the host's pools are for ['full', 'swa']"),
        (CacheConfig(), {"model": ModelSpec("m", "1", "swa", ())}, "must have components with different names, not []"),
        (CacheConfig(), {"model": ModelSpec("m", "1", "swa", (ComponentSpec("full"),) * 2)}, "not ['full', 'full']"),
        (CacheConfig(), {"tp_rank": 2, "tp_size": 2}, "tp_rank must be from 0 to tp_size - 1, not 2 of 2"),
        (CacheConfig(), {"components": {"full": print}}, "are filled from plugins; hosts leave them empty"),
        (CacheConfig(model_class="swa"), {}, "model_class 'swa' contradicts the host's model"),
    ],
)
def test_contradictions_are_refused_before_anything_is_made(
    deps: CacheDeps, config: CacheConfig, change: dict[str, Any], said: str
):
    registry, made = Registry(), Recorder()
    registry.register_kv_cache("radix_cache", made)
    with pytest.raises(ConfigError) as caught:
        build_kv_cache(config, replace(deps, **change), registry)
    assert said in str(caught.value)
    assert made.calls == []


def test_missing_plugin_is_refused(deps: CacheDeps):
    with pytest.raises(MissingPluginError, match="pip install kvcache-chunk"):
        build_kv_cache(CacheConfig(disaggregation_mode="decode"), deps, Registry())


def test_factory_that_cannot_be_imported_names_the_plugin(deps: CacheDeps):
    with pytest.raises(PluginError) as caught:
        build_kv_cache(CacheConfig(cache_type="radix_cache"), deps, registry_of("radix_cache"))
    assert "kvcache-radix 0.1.0 (plugin 'radix_cache') is broken at stage 'factory'" in str(caught.value)
    assert "importing radix:make raised ModuleNotFoundError" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_factory_that_raises_names_the_plugin_and_a_typed_error_passes(deps: CacheDeps):
    def explode(config: CacheConfig, deps: CacheDeps) -> BasePrefixCache:
        raise RuntimeError("no room")

    def refuse(config: CacheConfig, deps: CacheDeps) -> BasePrefixCache:
        raise ConfigError("the path is a file")

    registry = Registry()
    registry.register_kv_cache("explodes", explode)
    registry.register_kv_cache("refuses", refuse)
    with pytest.raises(PluginError, match=r"cache type 'explodes' of the host itself .* failed to build: RuntimeError: no room"):
        build_kv_cache(CacheConfig(cache_type="explodes"), deps, registry)
    with pytest.raises(KVCacheError, match=r"^the path is a file$"):
        build_kv_cache(CacheConfig(cache_type="refuses"), deps, registry)
