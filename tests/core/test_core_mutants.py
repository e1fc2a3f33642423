"""Planted faults in discovery, configuration and resolution: the directed tests are worth something only if each is found.

A mutant replaces one function of the core by one gone wrong; the directed test it is tied to (FAULTS C1 to C4) fails under it.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcache_conformance.installed import registry_of
from kvcache_core.config import load as load_module
from kvcache_core.config import resolve as resolve_module
from kvcache_core.config.flags import add_cache_flags, config_from_args
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.config.nodes import NodeWalk
from kvcache_core.config.resolve import resolve, usual_model
from kvcache_core.config.sources import ConfigSources
from kvcache_core.errors import ConfigError, DuplicateNameError, InvalidConfigError, PluginError
from kvcache_core.registry import discovery as discovery_module
from kvcache_core.registry import registry as registry_module
from kvcache_core.registry.discovery import discover
from kvcache_core.registry.known import Kind
from kvcache_core.registry.records import PluginSource
from kvcache_core.registry.registry import Registry

Plugin = Callable[..., PluginSource]
Mutant = Callable[[pytest.MonkeyPatch], None]
Directed = Callable[[Path, Plugin], None]

GOOD = """
@hookimpl
def kvcache_cache_types():
    return [CacheTypeDescriptor(name="good_cache", summary="works", factory="good.cache:make")]
"""


def _heads(folder: Path, text: str, *flags: str) -> list[str]:
    """The first lines of what is wrong with a file and flags; the file's own path is left out."""
    path = folder / "cache.yaml"
    path.write_text(text)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_cache_flags(parser, Registry())
    try:
        config_from_args(parser.parse_args(flags), path, Registry())
    except InvalidConfigError as error:
        return [problem.render().splitlines()[0].removeprefix(f"{path}:") for problem in error.problems]
    return []


# directed tests


def test_a_key_given_twice_is_an_error_in_files_and_flags(tmp_path: Path, plugin: Plugin):
    """FAULTS C1."""
    assert _heads(tmp_path, "hicache:\n  ratio: 1\n  ratio: 2\n") == ["3:3: hicache.ratio: given twice, first at line 2"]
    said = _heads(tmp_path, "", "--set", "hicache={ratio: 1, ratio: 2}")
    assert said == ["--set hicache: hicache.ratio: given twice"]


def test_an_unknown_key_is_an_error_with_a_suggestion(tmp_path: Path, plugin: Plugin):
    """FAULTS C1."""
    text = "page_siz: 16\nhicache: {ratoi: 2}\nratio: 2\n"
    assert _heads(tmp_path, text) == [
        "1:1: page_siz: unknown key (did you mean 'page_size'?)",
        "2:11: hicache.ratoi: unknown key (did you mean 'ratio'?)",
        "3:1: ratio: unknown key (did you mean 'hicache.ratio'?)",
    ]


def test_numbers_that_readers_disagree_about_are_errors(tmp_path: Path, plugin: Plugin):
    """FAULTS C1."""
    said = [*_heads(tmp_path, "page_size: 010\n"), *_heads(tmp_path, "", "--hicache-ratio", "1_6")]
    assert [head.partition(";")[0] for head in said] == [
        "1:12: page_size: 010 has a leading zero",
        "--hicache-ratio: hicache.ratio: 1_6 has underscores",
    ]


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, plugin: Plugin):
    """FAULTS C1."""
    said = _heads(tmp_path, "page_size: 0\npage_size: 1\nhicache: {write_policy: write_through, backup_on: 3}\n")
    assert len(said) == 4


def test_a_broken_default_stops_the_search(tmp_path: Path, plugin: Plugin):
    """FAULTS C2."""
    registry = registry_of("radix_cache", "full", broken=["unified_radix_cache"])
    with pytest.raises(PluginError, match="unified_radix_cache, a default for full_attention, is not passed over"):
        resolve(CacheConfig(), usual_model(None), registry)


def test_two_providers_of_a_name_are_both_named_and_neither_is_used(tmp_path: Path, plugin: Plugin):
    """FAULTS C3."""
    registry = Registry(discover([plugin("one", GOOD), plugin("two", GOOD)]))
    assert registry.names(Kind.CACHE_TYPE) == ()
    with pytest.raises(DuplicateNameError, match=r"acme-one 1\.0 .* and acme-two 1\.0"):
        registry.cache_type("good_cache")


def test_an_unknown_hook_and_another_api_version_are_recorded(tmp_path: Path, plugin: Plugin):
    """FAULTS C3."""
    misspelt = GOOD + "\n@hookimpl\ndef kvcache_observer():\n    return []\n"
    future = plugin("future", GOOD.replace("good_cache", "future_cache"), group="kvcache.v2")
    records = discover([plugin("misspelt", misspelt), future])
    assert {record.source.name: str(record.stage) for record in records} == {"future": "api version", "misspelt": "hooks"}


def test_hicache_needs_tiers_and_a_component_plugin_for_each_component(tmp_path: Path, plugin: Plugin):
    """FAULTS C4."""
    with_tiers = CacheConfig(cache_type="radix_cache", hicache=HiCacheConfig())
    with pytest.raises(ConfigError, match="has no tiers"):
        resolve(with_tiers, usual_model(None), registry_of("radix_cache"))
    unified = CacheConfig(cache_type="unified_radix_cache")
    with pytest.raises(PluginError, match="tree component 'swa' is not installed"):
        resolve(unified, usual_model("swa"), registry_of("unified_radix_cache", "full"))


# mutants


def the_last_of_two_keys_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def mapping(self: NodeWalk, node: yaml.MappingNode, loc: Any, above: Any) -> dict[str, Any]:
        return {key.value: self.build(value, (*loc, key.value), above) for key, value in node.value}

    monkeypatch.setattr(NodeWalk, "_mapping", mapping)


def flags_are_read_by_pyyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcache_core.config.sources.parse_value", lambda text, flag, loc: yaml.safe_load(text))


def numbers_are_read_as_yaml_1_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcache_core.config.nodes.scalar", lambda node: yaml.safe_load(node.value))


def an_unknown_key_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    validate = load_module._validate

    def lenient(sources: ConfigSources, registry: Registry, folder: Path) -> Any:
        for key in [key for key in sources.data if key not in CacheConfig.model_fields]:
            del sources.data[key]
        return validate(sources, registry, folder)

    monkeypatch.setattr(load_module, "_validate", lenient)


def a_fault_of_the_file_hides_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "_more_breaches", lambda *_: iter(()))


def a_broken_default_falls_through(monkeypatch: pytest.MonkeyPatch) -> None:
    objection = resolve_module._objection

    def mild(*args: Any) -> Any:
        found = objection(*args)
        return None if found is None else found._replace(fatal=False, absent=True)

    monkeypatch.setattr(resolve_module, "_objection", mild)


def the_first_provider_of_a_name_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_find_duplicates", lambda records: {})


def an_unknown_hook_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "_refuse_strange_hooks", lambda manager, module: None)


def any_api_version_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    load = discovery_module._load
    monkeypatch.setattr(
        discovery_module,
        "_load",
        lambda source: load(PluginSource(source.name, source.target, "kvcache.v1", source.distribution, source.version)),
    )


def tiers_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    objection = resolve_module._objection
    monkeypatch.setattr(
        resolve_module, "_objection", lambda registry, name, model, tiers: objection(registry, name, model, False)
    )


def components_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_module, "_component_objection", lambda registry, name, model: None)


@pytest.mark.parametrize(
    ("mutant", "test"),
    [
        (the_last_of_two_keys_wins, test_a_key_given_twice_is_an_error_in_files_and_flags),
        (flags_are_read_by_pyyaml, test_a_key_given_twice_is_an_error_in_files_and_flags),
        (flags_are_read_by_pyyaml, test_numbers_that_readers_disagree_about_are_errors),
        (numbers_are_read_as_yaml_1_1, test_numbers_that_readers_disagree_about_are_errors),
        (an_unknown_key_is_ignored, test_an_unknown_key_is_an_error_with_a_suggestion),
        (a_fault_of_the_file_hides_the_others, test_all_that_is_wrong_is_said_at_once),
        (a_broken_default_falls_through, test_a_broken_default_stops_the_search),
        (the_first_provider_of_a_name_is_taken, test_two_providers_of_a_name_are_both_named_and_neither_is_used),
        (an_unknown_hook_is_ignored, test_an_unknown_hook_and_another_api_version_are_recorded),
        (any_api_version_will_do, test_an_unknown_hook_and_another_api_version_are_recorded),
        (tiers_are_not_asked_for, test_hicache_needs_tiers_and_a_component_plugin_for_each_component),
        (components_are_not_asked_for, test_hicache_needs_tiers_and_a_component_plugin_for_each_component),
    ],
    ids=lambda value: value.__name__,
)
def test_the_planted_fault_is_found(
    mutant: Mutant, test: Directed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plugin: Plugin
):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(tmp_path, plugin)
