"""Everything that is wrong is said in one go, wherever it was given: in a file, on a flag, or as the name of a plugin."""

from pathlib import Path

import pytest

from kvcache_conformance.installed import registry_of
from kvcache_core.config.load import LoadedConfig, load_config
from kvcache_core.config.resolve import resolve, usual_model
from kvcache_core.config.sources import Override
from kvcache_core.errors import InvalidConfigError, KVCacheError, MissingPluginError
from kvcache_core.registry.known import Kind
from kvcache_core.registry.registry import Registry

NOT_YAML = Override(("page_size",), "[1", "--page-size")
NOT_A_MAPPING = Override(("page_size", "x"), "1", "--set page_size.x")


def _load(folder: Path, text: str, *overrides: Override) -> LoadedConfig:
    path = folder / "cache.yaml"
    path.write_text(text)
    return load_config(path, overrides, registry_of("radix_cache", "chunk_cache"))


def _problems(folder: Path, text: str, *overrides: Override) -> list[tuple[str, str | None]]:
    """The place and the suggestion of each problem."""
    with pytest.raises(InvalidConfigError) as caught:
        _load(folder, text, *overrides)
    return [(str(problem.place).removeprefix(f"{folder}/"), problem.suggestion) for problem in caught.value.problems]


@pytest.mark.parametrize("flag", [NOT_YAML, NOT_A_MAPPING], ids=lambda override: override.flag)
def test_a_flag_a_file_and_an_unknown_cache_type(tmp_path: Path, flag: Override):
    """FAULTS C1."""
    text = "page_size: 8\ncache_type: radix_cach\nhicahe: {}\n"
    assert _problems(tmp_path, text, flag) == [
        (flag.flag, None),
        ("cache.yaml:2:13", "radix_cache"),
        ("cache.yaml:3:1", "hicache"),
    ]


def test_what_cannot_be_read_a_flag_and_an_unknown_cache_type(tmp_path: Path):
    """FAULTS C1."""
    assert _problems(tmp_path, "page_size: 010\ncache_type: chunk_cach\n", Override(("hicache",), "[", "--set hicache")) == [
        ("--set hicache", None),
        ("cache.yaml:1:12", None),
        ("cache.yaml:2:13", "chunk_cache"),
    ]


def test_an_unknown_cache_type_on_a_flag(tmp_path: Path):
    """FAULTS C1."""
    flag = Override(("cache_type",), "radix_cach", "--cache-type", is_yaml=False)
    assert _problems(tmp_path, "page_siz: 8\n", flag) == [("--cache-type", "radix_cache"), ("cache.yaml:1:1", "page_size")]


def test_a_cache_type_that_is_wrong_already_is_not_looked_up(tmp_path: Path):
    text = "cache_type: nothing\ndisaggregation_mode: decode\npage_size: 0\n"
    assert [place for place, _ in _problems(tmp_path, text)] == ["cache.yaml:1:13", "cache.yaml:3:12"]


def test_alone_it_is_told_when_one_is_chosen(tmp_path: Path):
    """A host may register the type in between; until then its name is only a name. A program sees the suggestion by itself."""
    loaded = _load(tmp_path, "cache_type: radix_cach\n")
    with pytest.raises(MissingPluginError) as caught:
        resolve(loaded.config, usual_model(None), registry_of("radix_cache"))
    assert caught.value.suggestion == "radix_cache"
    assert caught.value.message + " (did you mean 'radix_cache'?)" == str(caught.value)
    located = loaded.located(caught.value)
    assert isinstance(located, InvalidConfigError)
    (problem,) = located.problems
    assert (problem.message, problem.suggestion) == (caught.value.message, "radix_cache")
    assert str(located).count("did you mean") == 1


def test_a_misspelt_storage_has_its_suggestion(tmp_path: Path):
    path = tmp_path / "cache.yaml"
    path.write_text("hicache: {storage: fil}\n")
    registry = Registry.installed()
    assert "file" in registry.names(Kind.STORAGE)
    with pytest.raises(InvalidConfigError) as caught:
        load_config(path, (), registry)
    (problem,) = caught.value.problems
    assert (problem.loc, problem.suggestion) == (("hicache", "storage"), "file")
    assert "did you mean" not in problem.message
    assert str(caught.value).count("did you mean 'file'?") == 1


def test_a_suggestion_is_one_that_can_be_used():
    error = KVCacheError("no such thing", suggestion="another")
    assert str(error) == "no such thing (did you mean 'another'?)"
    with pytest.raises(MissingPluginError) as caught:
        Registry().cache_type("radix_cach")
    assert caught.value.suggestion is None
