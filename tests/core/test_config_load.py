"""Configuration files: every fault with file, line and column, all at once, with a suggestion."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvcache_conformance.installed import registry_of
from kvcache_core.config.load import LoadedConfig, load_config
from kvcache_core.config.resolve import resolve, usual_model
from kvcache_core.config.sources import Override
from kvcache_core.errors import ConfigError, InvalidConfigError, PluginError
from kvcache_core.registry.discovery import discover
from kvcache_core.registry.records import PluginSource
from kvcache_core.registry.registry import Registry

SECTION_PLUGIN = """
from pathlib import Path
from pydantic import BaseModel, ConfigDict, field_validator

class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    depth: int = 1

class Engine(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str
    prompts: Path | None = None
    inner: Inner = Inner()
    weights: list[Inner] = []

    @field_validator("prompts")
    @classmethod
    def _beside_the_file(cls, value, info):
        return None if value is None else info.context["folder"] / value

@hookimpl
def kvcache_commands():
    model = f"{__name__}:Engine"
    return [CommandDescriptor(name="serve", summary="a", configure="a.b:c", run="a.b:d", section="host", section_model=model)]
"""


@pytest.fixture
def with_section(plugin: Callable[..., PluginSource]) -> Registry:
    records = discover([plugin("host", SECTION_PLUGIN)])
    assert records[0].ok, records[0].error
    return Registry(records)


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., LoadedConfig]:
    def write_and_load(text: str, registry: Registry | None = None, *overrides: Override) -> LoadedConfig:
        path = tmp_path / "cache.yaml"
        path.write_text(text)
        return load_config(path, overrides, registry or Registry())

    return write_and_load


def _fails(load: Callable[..., LoadedConfig], text: str, registry: Registry | None = None, *overrides: Override) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        load(text, registry, *overrides)
    lines = str(caught.value).splitlines()
    return "\n".join(line.partition("cache.yaml:")[2] if "cache.yaml:" in line else line for line in lines)


def test_everything_wrong_is_reported_at_once_in_reading_order(load: Callable[..., LoadedConfig]):
    """FAULTS C1."""
    said = _fails(
        load,
        """\
page_size: 10 gigs
disaggregation_mode: decode
cache_type: radix_cache
hicahe: {}
hicache:
  ratio: .nan
  write_polcy: write_through
  async_impl: futur
""",
    )
    assert (
        said
        == """\
1:12: page_size: must be a valid integer, not '10 gigs'
    1 | page_size: 10 gigs
      |            ^^^^^^^
3:13: cache_type: disaggregation_mode 'decode' allows only 'chunk_cache', not 'radix_cache': a decode node gets its KV from the \
prefill node and has no prefixes to reuse; remove cache_type
    3 | cache_type: radix_cache
      |             ^^^^^^^^^^^
4:1: hicahe: unknown key (did you mean 'hicache'?)
    4 | hicahe: {}
      | ^^^^^^
6:3: hicache: disaggregation_mode 'decode' cannot have hicache: offloading from decode nodes (DecodeKVCacheOffloadManager) is \
future work; remove hicache
    6 |   ratio: .nan
      |   ^
6:10: hicache.ratio: must be a finite number, not nan
    6 |   ratio: .nan
      |          ^^^^
7:3: hicache.write_polcy: unknown key (did you mean 'write_policy'?)
    7 |   write_polcy: write_through
      |   ^^^^^^^^^^^
8:15: hicache.async_impl: must be 'future' or 'threadpool', not 'futur' (did you mean 'future'?)
    8 |   async_impl: futur
      |               ^^^^^"""
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("page_size: 1\npage_size: 2\n", "2:1: page_size: given twice, first at line 1"),
        ("hicache:\n  ratio: 1\n  ratio: 2\n", "3:3: hicache.ratio: given twice, first at line 2"),
        ("page_size: [1\n", "not valid YAML"),
        ("- a\n", "1:1: a configuration is a mapping of keys to values"),
        ("just words\n", "1:1: a configuration is a mapping of keys to values"),
        ("page_size: !!python/object:os.system 1\n", "1:12: page_size: the tag !!python/object:os.system is not supported here"),
        ("page_size: 1\n---\npage_size: 2\n", "2:1: not valid YAML"),
        ("a: &x {<<: *x}\n", "a: merge keys (<<) are not supported"),
        ("a: &x [*x]\n", "a[0]: an alias may not contain itself"),
        ("? [a, b]\n: 1\n", "1:3: a key must be a word"),
        ("\tpage_size: 1\n", "1:1: not valid YAML"),
        ("page_size: 010\n", "1:12: page_size: 010 has a leading zero; write a decimal number such as 10, 0.5 or 1e3"),
        ("page_size: 1:30\n", "1:12: page_size: 1:30 has a colon"),
        ("page_size: 1_6\n", "1:12: page_size: 1_6 has underscores"),
        ("page_size: 0b11\n", "1:12: page_size: 0b11 is a binary number"),
        ("hicache: {ratio: 1_0.5}\n", "1:18: hicache.ratio: 1_0.5 has underscores"),
        ("page_size: 1e3\n", "1:12: page_size: must be a valid integer, not 1000.0"),
        (f"page_size: {'9' * 5000}\n", "1:12: page_size: Exceeds the limit"),
        ("page_size: !!int many\n", "1:12: page_size: 'many' is no !!int"),
        ("page_size: !foo 1\n", "1:12: page_size: the tag !foo is not supported here"),
        ("hicache: !!set {ratio}\n", "1:10: hicache: the tag !!set is not supported here"),
        ("hicache: !bar {ratio: 1}\n", "1:10: hicache: the tag !bar is not supported here"),
        ("hicache: !!str {ratio: 1}\n", "1:10: hicache: the tag !!str is not supported here"),
        ("cache_type: !!omap [a: 1]\n", "1:13: cache_type: the tag !!omap is not supported here"),
        ("!foo page_size: 1\n", "1:1: page_size: the tag !foo is not supported here"),
        ("hicache: " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply"),
        ("1: 2\n", "1:1: 1: unknown key"),
        ("ratio: 2\n", "1:1: ratio: unknown key (did you mean 'hicache.ratio'?)"),
        ("storage: file\n", "1:1: storage: unknown key (did you mean 'hicache.storage'?)"),
        ("write_polcy: write_through\n", "1:1: write_polcy: unknown key (did you mean 'hicache.write_policy'?)"),
        (
            "engine: {model: x}\n",
            "1:1: engine: configuration section 'engine' is not installed; install it with: pip install kvcache-engine",
        ),
    ],
    ids=str,
)
def test_fault_has_its_place(load: Callable[..., LoadedConfig], text: str, said: str):
    """FAULTS C1."""
    assert said in _fails(load, text)


def test_what_cannot_be_read_is_reported_once(load: Callable[..., LoadedConfig]):
    with pytest.raises(InvalidConfigError) as caught:
        load("page_size: 010\nhicache: {ratio: !x 1}\n")
    assert [problem.loc for problem in caught.value.problems] == [("page_size",), ("hicache", "ratio")]


def test_nested_aliases_end(load: Callable[..., LoadedConfig]):
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
    assert "a39: unknown key" in _fails(load, "a0: &a0 [x]\n" + levels)


@pytest.mark.parametrize(
    ("prepare", "said"), [("nothing", "no such file"), ("folder", "cannot be read"), ("latin", "is not UTF-8")]
)
def test_unreadable_file(tmp_path: Path, prepare: str, said: str):
    """FAULTS C1."""
    path = tmp_path / "cache.yaml"
    if prepare == "folder":
        path.mkdir()
    if prepare == "latin":
        path.write_bytes(b"cache_type: caf\xe9\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, (), Registry())
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_empty_file_is_all_defaults(load: Callable[..., LoadedConfig]):
    loaded = load("# nothing yet\n")
    assert loaded.config.page_size == 16
    assert loaded.origin(("page_size",)) == "default"


def test_yaml_null_is_the_mode_null(load: Callable[..., LoadedConfig]):
    assert load("disaggregation_mode: null\n").config.disaggregation_mode == "null"


def test_caret_stands_under_the_value_after_tabs_and_wide_characters(load: Callable[..., LoadedConfig]):
    said = _fails(load, '{model_class: "ü\t", page_size: nope}\n')
    assert said.splitlines()[3:] == [
        "1:32: page_size: must be a valid integer, not 'nope'",
        '    1 | {model_class: "ü\t", page_size: nope}',
        "      |                 \t              ^^^^",
    ]


# -- sections of other packages -------------------------------------------------------------------------------------------------


def test_section_is_validated_by_its_owner_with_the_files_folder(
    load: Callable[..., LoadedConfig], with_section: Registry, tmp_path: Path
):
    loaded = load("host:\n  model: tiny\n  prompts: prompts.jsonl\n", with_section)
    assert loaded.folder == tmp_path
    assert loaded.sections["host"].model_dump()["prompts"] == tmp_path / "prompts.jsonl"


def test_absent_section_is_absent(load: Callable[..., LoadedConfig], with_section: Registry):
    assert load("page_size: 8\n", with_section).sections == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host: {}\n", "1:1: host.model: required key is missing"),
        ("host:\n", "1:1: host.model: required key is missing"),
        ("host:\n  modl: x\n", "2:3: host.modl: unknown key (did you mean 'model'?)"),
        ("host: {model: x, inner: {dept: 1}}\n", "1:26: host.inner.dept: unknown key (did you mean 'depth'?)"),
        ("host: {model: x, weights: [{}, {depth: z}]}\n", "1:40: host.weights[1].depth: must be a valid integer"),
        ("hst: {model: x}\n", "1:1: hst: unknown key (did you mean 'host'?)"),
        ("host: 5\n", "1:7: host: must be a mapping of keys to values, not 5"),
    ],
)
def test_section_faults_have_places(load: Callable[..., LoadedConfig], with_section: Registry, text: str, said: str):
    """FAULTS C1."""
    assert said in _fails(load, text, with_section)


def test_section_whose_model_cannot_be_imported_names_the_plugin(
    load: Callable[..., LoadedConfig], plugin: Callable[..., PluginSource]
):
    """FAULTS C2."""
    broken = plugin("host", SECTION_PLUGIN.replace("{__name__}:Engine", "{__name__}_gone:Engine"))
    said = _fails(load, "host: {model: x}\n", Registry(discover([broken])))
    assert "1:1: host: acme-host 1.0 (plugin 'host') is broken at stage 'factory'" in said
    assert "ModuleNotFoundError" in said


# -- resolution errors get the place of the field that decided ------------------------------------------------------------------


def test_error_of_resolution_is_located_where_the_field_was_given(load: Callable[..., LoadedConfig]):
    loaded = load("page_size: 8\ncache_type: radix_cache\n")
    located = loaded.located(ConfigError("cannot be", path=("cache_type",)))
    assert "cache.yaml:2:13: cache_type: cannot be\n" in str(located)
    unplaced = ConfigError("cannot be", path=("model_class",))
    assert loaded.located(unplaced) is unplaced


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        ("model_class: swa\nhicache: {}\n", (), "cache.yaml:2:10: hicache: no default cache type for swa with hicache"),
        ("model_class: swa\n", (), "cache.yaml:1:14: model_class: no default cache type for swa"),
        ("", (Override(("hicache", "ratio"), "2", "--hicache-ratio"),), "--hicache-ratio: hicache: no default cache type"),
        ("", (Override(("model_class",), "swa", "--model-class", is_yaml=False),), "--model-class: model_class: no default"),
        ("page_size: 8\n", (), "no default cache type for full_attention can be used"),
    ],
)
def test_where_no_default_works_what_narrowed_the_choice_is_pointed_at(
    load: Callable[..., LoadedConfig], text: str, flags: tuple[Override, ...], said: str
):
    """FAULTS C4."""
    loaded = load(text, None, *flags)
    with pytest.raises(PluginError) as caught:
        resolve(loaded.config, usual_model(loaded.config.model_class), Registry())
    assert said in str(loaded.located(caught.value))


def test_a_broken_default_is_located_too(load: Callable[..., LoadedConfig]):
    """FAULTS C2."""
    loaded = load("model_class: full_attention\n")
    with pytest.raises(PluginError) as caught:
        resolve(loaded.config, usual_model(None), registry_of(broken=["radix_cache"]))
    assert "cache.yaml:1:14: model_class: radix_cache, a default for full_attention" in str(loaded.located(caught.value))


def test_a_key_given_twice_is_reported_beside_everything_else(tmp_path):
    """FAULTS C1."""
    path = tmp_path / "cache.yaml"
    path.write_text("page_size: 0\npage_size: 2\ncache_typ: x\n", encoding="utf-8")
    with pytest.raises(InvalidConfigError) as info:
        load_config(path)
    heads = [str(problem.place) + problem.message for problem in info.value.problems]
    assert len(heads) == 3
    assert "1:12" in heads[0]
    assert "2:1" in heads[1]
    assert "given twice" in heads[1]
    assert "3:1" in heads[2]
