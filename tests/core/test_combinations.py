"""The whole combination table of RFC-0 section 5.2 and what this project makes of it, against combinations.txt.

3 modes x 3 model classes x 4 cache types x hicache off and on, for every set of installed packages below, each from plain Python
and from YAML. After a change on purpose, write the file anew and read the difference row by row:

    python tests/core/test_combinations.py
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from kvcache_conformance.installed import DISTRIBUTIONS, record_of, registry_of
from kvcache_core.config.load import load_config
from kvcache_core.config.model import CacheConfig
from kvcache_core.config.problems import Problem, dotted
from kvcache_core.config.resolve import Resolution, resolve, usual_model
from kvcache_core.contracts.model_spec import ComponentSpec, ModelSpec
from kvcache_core.errors import ConfigError, InvalidConfigError, KVCacheError, MissingPluginError, PluginError
from kvcache_core.registry.known import names_of_package
from kvcache_core.registry.records import PluginRecord, PluginSource, Stage
from kvcache_core.registry.registry import Registry

GOLDEN = Path(__file__).with_name("combinations.txt")

ALL = tuple(DISTRIBUTIONS)
SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nothing": ((), ()),
    "chunk_cache": (("chunk_cache",), ()),
    "chunk_cache radix_cache": (("chunk_cache", "radix_cache"), ()),
    "chunk_cache unified_radix_cache full": (("chunk_cache", "unified_radix_cache", "full"), ()),
    "everything": (ALL, ()),
    **{f"everything but {name}": (tuple(other for other in ALL if other != name), ()) for name in ALL},
    **{f"everything, {name} broken": (tuple(other for other in ALL if other != name), (name,)) for name in ALL},
}
MODES = ("null", "prefill", "decode")
CLASSES = ("full_attention", "swa", "hybrid_recurrent")
TYPES = (None, "chunk_cache", "radix_cache", "unified_radix_cache")
HEADER = f"""\
Which cache comes of which configuration. One block for each set of installed packages; a cell is the cache type with the
component plugins it takes, or the number of an error below. Compared by {Path(__file__).name}, which also writes it.
"""


def _config_values(mode: str, model_class: str, cache_type: str | None, hicache: bool) -> dict[str, object]:
    values: dict[str, object] = {"disaggregation_mode": mode, "model_class": model_class}
    return values | ({"cache_type": cache_type} if cache_type else {}) | ({"hicache": {}} if hicache else {})


def _said(resolution: Resolution) -> str:
    return resolution.cache_type + (f"[{','.join(resolution.components)}]" if resolution.components else "")


def _from_python(values: dict[str, object], registry: Registry) -> str:
    """The result, or the error, of building the configuration in plain Python."""
    try:
        config = CacheConfig(**values)  # pyright: ignore[reportArgumentType]
        return _said(resolve(config, usual_model(config.model_class), registry))
    except ValidationError as error:
        return "\n".join(["ValidationError:", *(f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())])
    except KVCacheError as error:
        return f"{type(error).__name__}: {error}"


def _from_yaml(values: dict[str, object], registry: Registry, folder: Path) -> str:
    """The same from a file, in the words of `_from_python`."""
    path = folder / "cache.yaml"
    path.write_text(yaml.safe_dump(values))
    try:
        config = load_config(path, (), registry).config
        return _said(resolve(config, usual_model(config.model_class), registry))
    except InvalidConfigError as error:
        by_field = sorted(error.problems, key=lambda problem: list(CacheConfig.model_fields).index(str(problem.loc[0])))
        return "\n".join(["ValidationError:", *(_in_file(problem) for problem in by_field)])
    except KVCacheError as error:
        return f"{type(error).__name__}: {error}"


def _in_file(problem: Problem) -> str:
    has_line = problem.place is not None and problem.place.line is not None
    return f"  {dotted(problem.loc)}: {problem.message}" if has_line else f"  without a line: {problem}"


def _rows() -> Iterator[tuple[str, str, str, bool]]:
    for installed in SETS:
        for mode in MODES:
            for model_class in CLASSES:
                for hicache in (False, True):
                    yield installed, mode, model_class, hicache


def table() -> str:
    """The content that combinations.txt should have."""
    lines = [HEADER]
    errors: dict[str, str] = {}
    shown = None
    for installed, mode, model_class, hicache in _rows():
        if installed != shown:
            columns = "".join(f"  {name or '(unset)':40}" for name in TYPES).rstrip()
            lines += ["", f"== installed: {installed}", f"{'mode':8} {'model class':17} {'hicache':7}{columns}"]
            shown = installed
        names, broken = SETS[installed]
        registry = registry_of(*names, broken=broken)
        cells: list[str] = []
        for cache_type in TYPES:
            said = _from_python(_config_values(mode, model_class, cache_type, hicache), registry)
            is_result = said.startswith(tuple(name for name in TYPES if name))
            cells.append(said if is_result else errors.setdefault(said, f"E{len(errors) + 1:03}"))
        lines.append(
            f"{mode:8} {model_class:17} {'on' if hicache else 'off':7}{''.join(f'  {cell:40}' for cell in cells)}".rstrip()
        )
    lines += ["", "", "== errors"]
    for text, number in errors.items():
        lines.append(f"{number} " + text.replace("\n", "\n     "))
    return "\n".join(lines) + "\n"


def test_table_is_as_agreed():
    """FAULTS C4."""
    assert table() == GOLDEN.read_text()


def test_yaml_says_what_python_says(tmp_path: Path):
    outcomes: set[bool] = set()
    for installed, mode, model_class, hicache in _rows():
        names, broken = SETS[installed]
        registry = registry_of(*names, broken=broken)
        for cache_type in TYPES:
            values = _config_values(mode, model_class, cache_type, hicache)
            said = _from_python(values, registry)
            assert _from_yaml(values, registry, tmp_path) == said, (installed, values)
            outcomes.add("Error:" in said)
    assert outcomes == {True, False}


HYBRID_WITH_WINDOWS = ModelSpec(
    "m",
    "1",
    "hybrid_recurrent",
    (ComponentSpec("full"), ComponentSpec("recurrent", state_shape=(4,)), ComponentSpec("swa", window=8)),
)


def test_needed_components_follow_from_the_pools_not_from_the_class():
    resolution = resolve(CacheConfig(), HYBRID_WITH_WINDOWS, registry_of(*ALL))
    assert (resolution.cache_type, resolution.components) == ("unified_radix_cache", ("full", "recurrent", "swa"))
    without_windows = registry_of(*(name for name in ALL if name != "swa"))
    resolution = resolve(CacheConfig(), HYBRID_WITH_WINDOWS, without_windows)
    assert resolution.cache_type == "chunk_cache"
    skipped = resolution.steps[0]
    assert (skipped.subject, skipped.outcome) == ("unified_radix_cache", "skipped")
    assert "pip install kvcache-component-swa" in skipped.reason


def test_model_class_that_contradicts_the_host_is_refused():
    with pytest.raises(ConfigError, match="model_class 'swa' contradicts the host's model: it is 'hybrid_recurrent'"):
        resolve(CacheConfig(model_class="swa"), HYBRID_WITH_WINDOWS, registry_of(*ALL))


def test_full_attention_with_only_chunk_says_what_to_install():
    """FAULTS C4."""
    with pytest.raises(MissingPluginError) as caught:
        resolve(CacheConfig(), usual_model("full_attention"), registry_of("chunk_cache"))
    assert "pip install kvcache-unified-hicache" in str(caught.value)
    assert "pip install kvcache-radix" in str(caught.value)
    assert "what would work: cache_type 'chunk_cache'" in str(caught.value)


def test_a_broken_default_is_fatal_although_another_would_work():
    """FAULTS C2."""
    everything_but = registry_of(*(name for name in ALL if name != "unified_radix_cache"), broken=("unified_radix_cache",))
    with pytest.raises(PluginError, match=r"unified_radix_cache, a default for full_attention.*kvcache-unified-hicache 0\.1\.0"):
        resolve(CacheConfig(), usual_model("full_attention"), everything_but)
    assert resolve(CacheConfig(cache_type="radix_cache"), usual_model(None), everything_but).cache_type == "radix_cache"


def test_a_duplicate_and_another_api_version_are_fatal_like_a_broken_import():
    """FAULTS C3."""
    one = record_of("unified_radix_cache")
    fork = PluginRecord(PluginSource("fork", "fork", "kvcache.v1", "acme-fork", "2.0"), offers=one.offers)
    old = PluginRecord(
        one.source, Stage.API_VERSION, "was built for plugin API v0", claims=names_of_package(one.source.distribution)
    )
    for registry in (Registry([one, fork, record_of("radix_cache")]), Registry([old, record_of("radix_cache")])):
        with pytest.raises(PluginError, match=r"unified_radix_cache.*is not passed over.*kvcache-unified-hicache 0\.1\.0"):
            resolve(CacheConfig(), usual_model("full_attention"), registry)


def test_resolved_configuration_resolves_to_itself():
    registry = registry_of(*ALL)
    for hicache in (None, {}, {"host_bytes": 7}, {"write_policy": "write_through"}):
        first = resolve(CacheConfig.model_validate({"hicache": hicache}), usual_model("swa"), registry)
        again = resolve(first.config, usual_model("swa"), registry)
        assert again.config == first.config
        assert first.config.cache_type is not None
        assert first.config.model_class == "swa"


if __name__ == "__main__":
    GOLDEN.write_text(table())
