"""Flags over file over defaults, generated from the models, in a host's own parser."""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcache_core.config.flags import add_cache_flags, config_from_args, overrides_from_args
from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.errors import InvalidConfigError
from kvcache_core.registry.registry import Registry

Load = Callable[..., LoadedConfig]


@pytest.fixture
def load(everything: Registry, tmp_path: Path) -> Load:
    """`load("--flag value ...", "yaml text")` through a host's parser."""

    def parse_and_load(flags: str, text: str | None = None) -> LoadedConfig:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--port", type=int)
        add_cache_flags(parser, everything)
        args = parser.parse_args(shlex.split(flags))
        path = None
        if text is not None:
            path = tmp_path / "cache.yaml"
            path.write_text(text)
        return config_from_args(args, path, everything)

    return parse_and_load


def _fails(load: Load, flags: str, text: str | None = None) -> list[str]:
    with pytest.raises(InvalidConfigError) as caught:
        load(flags, text)
    return [problem.render().splitlines()[0] for problem in caught.value.problems]


RFC_FLAGS = [
    ("--cache-type radix_cache", ("cache_type",), "radix_cache"),
    ("--disaggregation-mode prefill", ("disaggregation_mode",), "prefill"),
    ("--disaggregation-mode null", ("disaggregation_mode",), "null"),
    ("--hicache-storage file", ("hicache", "storage", "kind"), "file"),
    ("--hicache-storage none", ("hicache", "storage"), None),
    ("--hicache-ratio 4", ("hicache", "ratio"), 4.0),
    ("--hicache-storage file --hicache-storage-path /data/x", ("hicache", "storage", "path"), "/data/x"),
    ("--hicache-storage-path 1e3 --hicache-storage file", ("hicache", "storage", "path"), "1e3"),
    (
        "--hicache-storage other --set hicache.storage.bucket=b --hicache-other-label 007",
        ("hicache", "storage"),
        {"kind": "other", "bucket": "b", "label": "007"},
    ),
    ("--hicache-write-policy write_through", ("hicache", "write_policy"), "write_through"),
    ("--hicache-async-impl threadpool", ("hicache", "async_impl"), "threadpool"),
    ("--page-size 64", ("page_size",), 64),
    ("--model-class swa", ("model_class",), "swa"),
    ("--hicache-host-bytes 4GiB", ("hicache", "host_bytes"), 4 * 2**30),
    ("--hicache-host-pool preallocated", ("hicache", "host_pool"), "preallocated"),
    ("--hicache-backup-on evict", ("hicache", "backup_on"), "evict"),
    (
        "--set 'hicache.storage={kind: file, max_bytes: 5}'",
        ("hicache", "storage"),
        {"kind": "file", "path": "~/.cache/l3", "max_bytes": 5},
    ),
    ("--set hicache.storage.kind=file --set hicache.storage.max_bytes=7", ("hicache", "storage", "max_bytes"), 7),
    ("--set page_size=1", ("page_size",), 1),
    ("--hicache-ratio 1e3", ("hicache", "ratio"), 1000.0),
    ("--hicache-ratio 4 --set hicache=null", ("hicache",), None),
]


@pytest.mark.parametrize(("flags", "loc", "value"), RFC_FLAGS, ids=[flags for flags, _, _ in RFC_FLAGS])
def test_flag_sets_its_field(load: Load, flags: str, loc: tuple[str, ...], value: Any):
    found: Any = load(flags).config.model_dump()
    for part in loc:
        found = found[part]
    assert found == value


def test_every_field_has_a_flag(everything: Registry):
    parser = argparse.ArgumentParser()
    add_cache_flags(parser, everything)
    text = parser.format_help()
    for name in CacheConfig.model_fields:
        if name != "hicache":
            assert f"--{name.replace('_', '-')} " in text
    for name in HiCacheConfig.model_fields:
        assert f"--hicache-{name.replace('_', '-')} " in text
    assert "--hicache-storage-path " in text
    assert "{none,file,other}" in text
    assert "{chunk_cache,radix_cache,unified_radix_cache}" in text


def test_no_flag_given_changes_nothing(load: Load):
    loaded = load("--port 80")
    assert loaded.config == CacheConfig()
    assert overrides_from_args(argparse.Namespace(port=80)) == ()


@pytest.mark.parametrize("flag", ["--hicache-ratio 2", "--hicache-storage none", "--hicache-async-impl future"])
def test_any_hicache_flag_creates_the_section(load: Load, flag: str):
    assert load(flag).config.hicache is not None


def test_flags_win_over_the_file_and_the_file_over_defaults(load: Load):
    loaded = load("--page-size 64", "page_size: 32\nhicache:\n  ratio: 3\n")
    assert (loaded.config.page_size, loaded.config.hicache and loaded.config.hicache.ratio) == (64, 3.0)
    assert loaded.origin(("page_size",)) == "--page-size"
    assert loaded.origin(("hicache", "ratio")).endswith("cache.yaml:3:10")
    assert loaded.origin(("hicache", "async_impl")) == "default"


def test_the_last_flag_wins(load: Load):
    loaded = load("--page-size 64 --set page_size=32 --page-size 8")
    assert loaded.config.page_size == 8
    assert load("--page-size 64 --set page_size=32").config.page_size == 32


def test_the_same_kind_keeps_the_files_options_and_another_drops_them(load: Load):
    text = "hicache:\n  storage: {kind: file, path: /data}\n"
    same, other = load("--hicache-storage file", text).config, load("--hicache-storage none", text).config
    assert same.hicache is not None and same.hicache.storage is not None
    assert same.hicache.storage.options.model_dump()["path"] == "/data"
    assert other.hicache is not None and other.hicache.storage is None
    said = _fails(load, "--hicache-storage other", text)
    assert said == ["--hicache-storage: hicache.storage.bucket: required key is missing"]


def test_short_form_in_the_file_takes_an_option_from_a_flag(load: Load):
    loaded = load("--hicache-storage-path /data", "hicache: {storage: file}\n")
    assert loaded.config.hicache is not None and loaded.config.hicache.storage is not None
    assert loaded.config.hicache.storage.options.model_dump()["path"] == "/data"
    assert loaded.origin(("hicache", "storage", "path")) == "--hicache-storage-path"


@pytest.mark.parametrize(
    ("flags", "text", "said"),
    [
        ("--page-size many", None, "--page-size: page_size: must be a valid integer, not 'many'"),
        ("--page-size [", None, "--page-size: '[' is not valid YAML"),
        ("--page-size 010", None, "--page-size: page_size: 010 has a leading zero"),
        ("--set page_size=1_6", None, "--set page_size: page_size: 1_6 has underscores"),
        (
            "--set page_size='!!python/name:os.system x'",
            None,
            "--set page_size: page_size: the tag !!python/name:os.system is not",
        ),
        ("--set 'hicache={ratio: 1, ratio: 2}'", None, "--set hicache: hicache.ratio: given twice"),
        ("--hicache-ratio .nan", None, "--hicache-ratio: hicache.ratio: must be a finite number, not nan"),
        (
            "--hicache-write-policy write_back",
            None,
            "--hicache-write-policy: hicache.write_policy: must be 'write_through' or 'write_through_and_back', not 'write_back'",
        ),
        ("--set hicache.ratoi=2", None, "--set hicache.ratoi: hicache.ratoi: unknown key (did you mean 'ratio'?)"),
        ("--set page_size.x=2", "page_size: 3\n", "--set page_size.x: cannot be set: page_size is 3, not a mapping"),
        (
            "--hicache-storage-path /x",
            None,
            "--hicache-storage-path: needs a storage backend; add --hicache-storage with one of: file",
        ),
        (
            "--hicache-storage other --hicache-storage-path /x",
            None,
            "--hicache-storage-path: storage backend 'other' has no such option; it belongs to: file",
        ),
        ("--hicache-storage s3", None, "--hicache-storage: hicache.storage: no installed plugin provides storage backend 's3'"),
        (
            "--hicache-ratio 2",
            "disaggregation_mode: decode\n",
            "--hicache-ratio: hicache: disaggregation_mode 'decode' cannot have",
        ),
        (
            "--cache-type radix_cache",
            "disaggregation_mode: decode\n",
            "--cache-type: cache_type: disaggregation_mode 'decode' allows",
        ),
    ],
    ids=str,
)
def test_fault_is_located_at_its_flag(load: Load, flags: str, text: str | None, said: str):
    """FAULTS C1."""
    first, *more = _fails(load, flags, text)
    assert first.startswith(said)
    # What this backend needs is wrong besides.
    assert more == (["--hicache-storage: hicache.storage.bucket: required key is missing"] if "storage other" in flags else [])


def test_faults_of_flags_and_file_come_together(load: Load):
    """FAULTS C1."""
    said = _fails(load, "--page-size many", "hicahe: 1\n")
    assert len(said) == 2


@pytest.mark.parametrize("words", ["--set nonsense", "--set =3", "--hicache-stor file", "--page-siz 3"])
def test_malformed_command_line_is_argparses_error(load: Load, words: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        load(words)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err
