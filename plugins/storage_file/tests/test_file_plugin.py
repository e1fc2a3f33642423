"""The backend `file` as a configuration meets it."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from kvcache_core.config.load import load_config
from kvcache_core.registry.default import default_registry
from kvcache_storage_file.config import FileOptions


def test_it_is_found_by_its_name_with_its_flag_and_capabilities():
    descriptor = default_registry().storage("file").descriptor
    assert descriptor.options is FileOptions
    assert descriptor.flags == (("path", "--hicache-storage-path"),)
    assert descriptor.capabilities == {"capacity", "persistent", "scan", "shared"}


def test_its_defaults():
    options = FileOptions()
    assert options.model_dump() == {
        "path": "~/.cache/sgl-jax/hicache",
        "durability": "none",
        "max_bytes": None,
        "min_free_bytes": None,
        "workers": 4,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": "a\0b"},
        {"path": None},
        {"durability": "fsync"},
        {"max_bytes": 0},
        {"max_bytes": -1},
        {"max_bytes": 2047},
        {"max_bytes": "10 gigs"},
        {"max_bytes": float("nan")},
        {"max_bytes": True},
        {"max_bytes": "1e3"},
        {"min_free_bytes": "-1GiB"},
        {"workers": 0},
        {"workers": 1000},
        {"max_byte": 1},
    ],
)
def test_wrong_options_are_errors(wrong):
    with pytest.raises(ValidationError) as caught:
        FileOptions.model_validate(wrong)
    assert caught.value.errors()[0]["loc"] == (next(iter(wrong)),)


def test_sizes_have_units_and_null_is_no_limit():
    options = FileOptions.model_validate({"max_bytes": "3 GiB", "min_free_bytes": "0KiB"})
    assert (options.max_bytes, options.min_free_bytes) == (3 * 2**30, 0)
    assert FileOptions.model_validate({"max_bytes": None}).max_bytes is None


def test_a_relative_path_belongs_to_the_folder_of_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "cache.yaml"
    monkeypatch.chdir(tmp_path.parent)
    for written, meant in (("../pages", tmp_path / "pages"), ("~/pages", "~/pages"), ("/pages", "/pages")):
        file.write_text(f"hicache:\n  storage: {{kind: file, path: '{written}'}}\n")
        hicache = load_config(str(file)).config.hicache
        assert hicache is not None
        assert hicache.storage is not None
        assert hicache.storage.options.model_dump()["path"] == str(meant)


def test_importing_it_imports_no_jax():
    code = "import sys, kvcache_storage_file.storage, kvcache_storage_file.plugin; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
