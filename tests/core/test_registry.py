"""Names: registered, looked up, unknown, offered twice, claimed by something broken."""

import pytest

import kvcache_core
from kvcache_conformance.installed import record_of, registry_of
from kvcache_conformance.storage_kit import CAPABILITIES as KIT_CAPABILITIES
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.errors import DuplicateNameError, MissingPluginError, PluginError
from kvcache_core.registry.checks import CAPABILITIES, EXPECTED, RESERVED_FLAGS, RESERVED_SECTIONS
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.hookspecs import HookSpecs
from kvcache_core.registry.known import OUR_PACKAGES, Kind
from kvcache_core.registry.records import Stage
from kvcache_core.registry.registry import Registry, State


def _constructor(config: object, deps: object) -> None:
    raise AssertionError("not called")


def test_registered_type_is_looked_up_with_its_capabilities():
    registry = Registry()
    registry.register_kv_cache("mine", _constructor, tiers=True, components=frozenset({"full"}))
    descriptor = registry.cache_type("mine").descriptor
    assert descriptor.factory is _constructor
    assert (descriptor.tiers, descriptor.components, descriptor.needs_components) == (True, frozenset({"full"}), False)
    assert registry.names(Kind.CACHE_TYPE) == ("mine",)
    assert registry.state(Kind.CACHE_TYPE, "mine") is State.OFFERED


@pytest.mark.parametrize("installed", [registry_of("radix_cache"), registry_of(broken=("radix_cache",))], ids=["whole", "broken"])
def test_registering_a_name_of_an_installed_plugin_is_refused(installed: Registry):
    with pytest.raises(DuplicateNameError, match=r"'radix_cache' is registered already: .*kvcache-radix 0\.1\.0"):
        installed.register_kv_cache("radix_cache", _constructor)


def test_registering_twice_is_refused_and_the_first_stays():
    registry = Registry()
    registry.register_kv_cache("mine", _constructor)
    with pytest.raises(DuplicateNameError, match="'mine' is registered already: the host itself"):
        registry.register_kv_cache("mine", lambda config, deps: None)
    assert registry.cache_type("mine").descriptor.factory is _constructor


@pytest.mark.parametrize(("name", "constructor"), [("Not A Name", _constructor), ("", _constructor), ("mine", "text")])
def test_registering_nonsense_is_refused(name: str, constructor: object):
    with pytest.raises(ValueError, match="cache type"):
        Registry().register_kv_cache(name, constructor)  # pyright: ignore[reportArgumentType]


def test_unknown_name_lists_what_is_installed_and_suggests():
    with pytest.raises(MissingPluginError) as caught:
        registry_of("chunk_cache", "radix_cache").cache_type("radixcache")
    assert str(caught.value) == (
        "no installed plugin provides cache type 'radixcache'; installed: chunk_cache, radix_cache (did you mean 'radix_cache'?)"
    )


@pytest.mark.parametrize(("kind_and_name", "package"), OUR_PACKAGES.items(), ids=str)
def test_missing_package_of_ours_gets_the_pip_command(kind_and_name: tuple[Kind, str], package: str):
    text = Registry().trouble(*kind_and_name)
    assert text.endswith(f"is not installed; install it with: pip install {package}")


def test_a_stranger_never_gets_a_pip_command():
    assert "pip" not in Registry().trouble(Kind.STORAGE, "s3")


def test_broken_plugin_is_named_with_distribution_version_stage_and_exception():
    with pytest.raises(PluginError) as caught:
        registry_of(broken=("radix_cache",)).cache_type("radix_cache")
    assert not isinstance(caught.value, MissingPluginError)
    assert "kvcache-radix 0.1.0" in str(caught.value)
    assert "stage 'import': ModuleNotFoundError: No module named 'zstd'" in str(caught.value)


def test_two_distributions_with_one_name_are_both_named_and_neither_used():
    ours = record_of("radix_cache")
    theirs = type(ours)(type(ours.source)("fork", "fork.plugin", "kvcache.v1", "acme-fork", "9.0"), offers=ours.offers)
    registry = Registry([theirs, ours, record_of("chunk_cache")])
    with pytest.raises(DuplicateNameError, match=r"acme-fork 9\.0 .* and kvcache-radix 0\.1\.0 .*neither is used"):
        registry.cache_type("radix_cache")
    assert registry.names(Kind.CACHE_TYPE) == ("chunk_cache",)
    assert [record.stage for record in registry.records] == [Stage.DUPLICATE, Stage.DUPLICATE, Stage.READY]


def test_strict_refuses_any_broken_plugin():
    registry_of("chunk_cache").check_strict()
    with pytest.raises(PluginError, match="kvcache-radix"):
        registry_of("chunk_cache", broken=("radix_cache",)).check_strict()


def test_module_level_registration_reaches_the_default_registry():
    name = "registered_by_test_registry"
    kvcache_core.register_kv_cache(name, _constructor)
    assert default_registry().cache_type(name).descriptor.factory is _constructor
    with pytest.raises(DuplicateNameError):
        kvcache_core.register_kv_cache(name, _constructor)


def test_reserved_names_are_those_of_the_models():
    assert set(CacheConfig.model_fields) == RESERVED_SECTIONS
    assert {"--hicache-" + name.replace("_", "-") for name in HiCacheConfig.model_fields} == RESERVED_FLAGS


def test_every_hook_is_known_to_discovery():
    assert {name for name in vars(HookSpecs) if name.startswith("kvcache_")} == set(EXPECTED)


def test_reexported_names_exist():
    for name in kvcache_core.__all__:
        assert getattr(kvcache_core, name).__name__ == name


def test_the_capabilities_are_those_that_the_kit_has_parts_for():
    assert KIT_CAPABILITIES.keys() == CAPABILITIES
