"""CacheConfig in plain Python: what it accepts, what it refuses, and where it says the fault is."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from kvcache_core.config.load import config_from_mapping
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.config.resolve import resolve, usual_model
from kvcache_core.config.rules import write_settings
from kvcache_core.config.schema import config_schema
from kvcache_core.errors import InvalidConfigError
from kvcache_core.registry.registry import Registry


def _errors(values: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(ValidationError) as caught:
        CacheConfig(**values)
    return [(".".join(map(str, error["loc"])), error["msg"]) for error in caught.value.errors()]


def test_defaults():
    config = CacheConfig()
    assert config.model_dump() == {
        "cache_type": None,
        "disaggregation_mode": "null",
        "page_size": 16,
        "model_class": None,
        "hicache": None,
    }
    hicache = HiCacheConfig()
    assert (hicache.ratio, hicache.async_impl, hicache.host_pool, hicache.storage) == (2.0, "future", "per_page", None)


def test_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        CacheConfig().page_size = 3  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("mode", [None, "null"])
def test_null_mode_has_two_spellings(mode: Any):
    assert CacheConfig(disaggregation_mode=mode).disaggregation_mode == "null"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"cache_typ": "x"}, "cache_typ"),
        ({"page_size": 0}, "page_size"),
        ({"page_size": 65537}, "page_size"),
        ({"page_size": "16"}, "page_size"),
        ({"page_size": True}, "page_size"),
        ({"page_size": 16.0}, "page_size"),
        ({"cache_type": ""}, "cache_type"),
        ({"cache_type": 3}, "cache_type"),
        ({"disaggregation_mode": "Decode"}, "disaggregation_mode"),
        ({"model_class": "mamba"}, "model_class"),
        ({"hicache": True}, "hicache"),
        ({"hicache": {"ratio": -1}}, "hicache.ratio"),
        ({"hicache": {"ratio": 0}}, "hicache.ratio"),
        ({"hicache": {"ratio": math.nan}}, "hicache.ratio"),
        ({"hicache": {"ratio": math.inf}}, "hicache.ratio"),
        ({"hicache": {"ratio": "2"}}, "hicache.ratio"),
        ({"hicache": {"ratio": None}}, "hicache.ratio"),
        ({"hicache": {"host_bytes": "10 gigs"}}, "hicache.host_bytes"),
        ({"hicache": {"host_bytes": -4}}, "hicache.host_bytes"),
        ({"hicache": {"host_bytes": "0GiB"}}, "hicache.host_bytes"),
        ({"hicache": {"host_bytes": "1025TiB"}}, "hicache.host_bytes"),
        ({"hicache": {"host_bytes": 1.5}}, "hicache.host_bytes"),
        ({"hicache": {"host_bytes": 4, "ratio": 2.0}}, "hicache.host_bytes"),
        ({"hicache": {"write_policy": "selective"}}, "hicache.write_policy"),
        ({"hicache": {"write_policy": "write_through", "backup_on": "evict"}}, "hicache.backup_on"),
        ({"hicache": {"write_policy": "write_through", "persist_on": "never"}}, "hicache.persist_on"),
        ({"hicache": {"persist_on": "insert"}}, "hicache.persist_on"),
        ({"hicache": {"persist_on": "evict", "storage": "none"}}, "hicache.persist_on"),
        ({"hicache": {"backup_on": "never"}}, "hicache.backup_on"),
        ({"hicache": {"async_impl": "asyncio"}}, "hicache.async_impl"),
        ({"hicache": {"storage": 5}}, "hicache.storage"),
        ({"hicache": {"storage": {"path": "x"}}}, "hicache.storage"),
        ({"hicache": {"storage": {"kind": "none", "path": "x"}}}, "hicache.storage"),
        ({"disaggregation_mode": "decode", "cache_type": "radix_cache"}, "cache_type"),
        ({"disaggregation_mode": "decode", "cache_type": "unified_radix_cache"}, "cache_type"),
        ({"disaggregation_mode": "decode", "hicache": {}}, "hicache"),
    ],
    ids=str,
)
def test_refused_at_the_field_that_is_wrong(values: dict[str, Any], field: str):
    """FAULTS C1, C4."""
    assert [loc for loc, _ in _errors(values)] == [field]
    with pytest.raises(InvalidConfigError) as caught:
        config_from_mapping(values)
    assert [".".join(map(str, problem.loc)) for problem in caught.value.problems] == [field]


def test_decode_says_what_is_future_work_and_names_both_faults():
    errors = _errors({"disaggregation_mode": "decode", "cache_type": "radix_cache", "hicache": {}})
    assert [loc for loc, _ in errors] == ["cache_type", "hicache"]
    assert "DecodeKVCacheOffloadManager" in errors[1][1]


@pytest.mark.parametrize("values", [{"cache_type": "chunk_cache"}, {}], ids=["explicit", "unset"])
def test_decode_takes_chunk_cache(values: dict[str, Any]):
    assert CacheConfig(disaggregation_mode="decode", **values).disaggregation_mode == "decode"


def test_the_largest_sizes_are_taken():
    assert CacheConfig(page_size=65536, hicache=HiCacheConfig.model_validate({"host_bytes": "1024TiB"})).page_size == 65536


def test_sizes_with_units():
    assert HiCacheConfig.model_validate({"host_bytes": "4GiB"}).host_bytes == 4 * 2**30
    assert HiCacheConfig.model_validate({"host_bytes": "512 MiB"}).host_bytes == 512 * 2**20


@pytest.mark.parametrize("values", [{"host_bytes": 10}, {"ratio": 3}, {"write_policy": "write_through"}, {"backup_on": "evict"}])
def test_a_dump_is_accepted_again(values: dict[str, Any]):
    config = CacheConfig(hicache=HiCacheConfig(**values))
    assert CacheConfig(**config.model_dump()) == config


@pytest.mark.parametrize(
    ("policy", "backup_on", "persist_on", "storage", "expected"),
    [
        (None, None, None, False, ("insert", "never")),
        (None, None, None, True, ("insert", "evict")),
        ("write_through", None, None, True, ("insert", "never")),
        ("write_through_and_back", None, None, True, ("insert", "evict")),
        ("write_through_and_back", None, None, False, ("insert", "never")),
        (None, "evict", None, True, ("evict", "evict")),
        (None, "evict", None, False, ("evict", "never")),
        (None, None, "insert", True, ("insert", "insert")),
        (None, "evict", "never", True, ("evict", "never")),
    ],
)
def test_write_settings(policy: Any, backup_on: Any, persist_on: Any, storage: bool, expected: tuple[str, str]):
    assert write_settings(policy, backup_on, persist_on, storage=storage) == expected


# -- the storage slot -----------------------------------------------------------------------------------------------------------


def _with_storage(storage: Any, registry: Registry) -> CacheConfig:
    return CacheConfig.model_validate({"hicache": {"storage": storage}}, context={"registry": registry})


def test_slot_is_filled_by_the_plugin_that_is_named(everything: Registry):
    for short in ("file", {"kind": "file"}):
        config = _with_storage(short, everything)
        assert config.hicache is not None and config.hicache.storage is not None
        assert config.hicache.storage.kind == "file"
        assert config.hicache.storage.options.model_dump() == {"path": "~/.cache/l3", "max_bytes": None}
    assert config.hicache.model_dump()["storage"] == {"kind": "file", "path": "~/.cache/l3", "max_bytes": None}
    assert json.loads(config.model_dump_json())["hicache"]["storage"]["path"] == "~/.cache/l3"


@pytest.mark.parametrize("off", [None, "none", {"kind": "none"}], ids=str)
def test_none_is_no_storage(off: Any, everything: Registry):
    config = _with_storage(off, everything)
    assert config.hicache is not None and config.hicache.storage is None


@pytest.mark.parametrize(
    ("storage", "field", "text"),
    [
        ({"kind": "file", "pth": "x"}, "hicache.storage.pth", "unknown key"),
        ({"kind": "file", "max_bytes": "many"}, "hicache.storage.max_bytes", "valid integer"),
        ({"kind": "other"}, "hicache.storage.bucket", "required key is missing"),
        ("other", "hicache.storage.bucket", "required key is missing"),
        ({"kind": "fil"}, "hicache.storage.kind", "did you mean 'file'?"),
        ({"kind": "redis"}, "hicache.storage.kind", "pip install kvcache-storage-redis"),
        ("redis", "hicache.storage", "pip install kvcache-storage-redis"),
        ({"path": "x"}, "hicache.storage", "installed: file, other"),
    ],
    ids=str,
)
def test_slot_faults_stand_at_their_own_path(storage: Any, field: str, text: str, everything: Registry):
    """FAULTS C1, C2."""
    with pytest.raises(InvalidConfigError) as caught:
        config_from_mapping({"hicache": {"storage": storage}}, everything)
    (problem,) = caught.value.problems
    assert ".".join(map(str, problem.loc)) == field
    assert text in problem.render()


def test_resolution_keeps_the_options_and_settles_the_policy(everything: Registry):
    config = _with_storage({"kind": "file", "path": "/x"}, everything)
    resolution = resolve(config, usual_model(None), everything)
    assert resolution.storage == "file"
    assert resolution.config.hicache is not None and resolution.config.hicache.storage is not None
    assert resolution.config.hicache.storage.options.model_dump()["path"] == "/x"
    assert (resolution.config.hicache.backup_on, resolution.config.hicache.persist_on) == ("insert", "evict")


def test_resolution_says_when_storage_is_only_read(everything: Registry):
    config = CacheConfig.model_validate(
        {"hicache": {"storage": "file", "write_policy": "write_through"}}, context={"registry": everything}
    )
    assert "storage is only read, never written" in resolve(config, usual_model(None), everything).steps[-1].reason


def test_schema_is_a_union_of_the_installed_kinds(everything: Registry):
    schema, troubles = config_schema(everything)
    assert troubles == []
    union, short = schema["$defs"]["HiCacheConfig"]["properties"]["storage"]["anyOf"]
    assert union["discriminator"]["propertyName"] == "kind"
    assert sorted(union["discriminator"]["mapping"]) == ["file", "other"]
    assert short["enum"] == ["file", "other", "none", None]
    other = schema["$defs"]["storage_other"]
    assert other["required"] == ["kind", "bucket"]
    assert other["additionalProperties"] is False
    assert other["properties"]["kind"] == {"const": "other"}
