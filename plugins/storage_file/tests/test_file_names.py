"""Names from outside never become paths (FAULTS K6), and what the store does not know it leaves alone (S7)."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import numbered_key, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file import layout
from kvcache_storage_file.layout import Layout, is_hashed, model_id_of
from kvcache_storage_file.pages import Pages

HOSTILE = [
    "",
    ".",
    "..",
    "../up",
    "/etc",
    "a/b",
    "a//b",
    "a\\b",
    "a%2Fb",
    "%2E%2E",
    ".kvcache",
    "a\0b",
    "a\nb",
    "CON",
    "ü",
    "x" * 300,
    "é" * 150,
]
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(), st.text(alphabet="ab./%-\\", max_size=300))


@given(NAMES)
@example("\ud800")
def test_a_model_id_becomes_one_safe_folder_name(model_id):
    name = layout.folder_name(model_id)
    assert 0 < len(os.fsencode(name)) <= 255
    assert os.sep not in name
    assert "\0" not in name
    assert not name.startswith(".")
    assert is_hashed(name) or model_id_of(name) == model_id


@given(NAMES, NAMES)
@example("a/b", "a%2Fb")
@example("x" * 300, "x" * 299)
@example("", "%-")
def test_two_model_ids_have_two_folders(one, other):
    assert (layout.folder_name(one) == layout.folder_name(other)) == (one == other)


def test_plain_model_ids_are_their_own_folders():
    for plain in ("SmolLM2-135M-Instruct", "Qwen3_0.6B", "a.b"):
        assert layout.folder_name(plain) == plain
    assert layout.folder_name("Qwen/Qwen3-0.6B") == "Qwen%2FQwen3-0.6B"


@pytest.mark.parametrize("model_id", [*HOSTILE, "plain"])
def test_pages_of_any_model_stay_in_the_root_and_are_named_by_scan(root, model_id, tmp_path):
    storage = root.open(StorageScope(model_id, 16))
    store_numbered(storage, [1], 100)
    assert {page.model_id for page in storage.scan()} == {model_id}
    assert len(root.pages()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "..",
        "../" * 21 + "a",
        "/" + "a" * 63,
        "A" * 64,
        "a" * 63,
        "a" * 65,
        "g" * 64,
        "a" * 63 + "\n",
        "a" * 64 + "\n",
        "\uff10" * 64,
    ],
)
def test_what_is_no_key_is_refused_before_anything_happens(root, key):
    storage = root.open()
    good = numbered_key(1)
    for call in (storage.exists, storage.get, storage.delete, lambda keys: storage.set(keys, [b"x"] * len(keys))):
        with pytest.raises(ValueError, match="64 lowercase hex"):
            call([good, key])
    assert root.pages() == set()


@pytest.mark.parametrize("page_size", [0, -1])
def test_a_page_size_is_positive(page_size):
    with pytest.raises(ValueError, match="page_size"):
        Layout("root", "model", page_size)


def strange_files(root) -> list[Path]:
    """What somebody else may have put among the pages, all of it old."""
    key = numbered_key(1)
    shard = root.path / "model" / "16" / key[:2]
    names = [
        root.path / "notes.txt",
        root.path / "model" / "config.json",
        root.path / "model" / "16" / "list.npy",
        root.path / "model" / "sixteen" / key[:2] / f"{key}.npy",
        root.path / "model" / "016" / key[:2] / f"{key}.npy",
        root.path / ".hidden" / "16" / key[:2] / f"{key}.npy",
        shard / "picture.npy",
        shard / f"{key}.npy.bak",
        shard / f"{key.upper()}.npy",
        shard / f"{'00' if key[:2] != '00' else '11'}{key[2:]}.npy",
    ]
    for path in names:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not yours" * 100)
        os.utime(path, (1, 1))
    outside = root.path.parent / "outside"
    outside.mkdir()
    linked = outside / f"ee{key[2:]}.npy"
    linked.write_bytes(b"behind a link" * 100)
    os.utime(linked, (1, 1))
    (root.path / "model" / "16" / "ee").symlink_to(outside)
    return [*names, linked]


def test_only_pages_are_evicted_scanned_and_deleted(root):
    root.open().close()
    strange = strange_files(root)
    storage = root.open(max_bytes=2600)
    store_numbered(storage, range(20), 1000)
    assert [number for number in range(20) if root.file(number).exists()] == [18, 19]
    assert {page.key for page in storage.scan()} <= {numbered_key(number) for number in range(20)}
    storage.delete([numbered_key(number) for number in range(20)])
    assert list(storage.scan()) == []
    assert [path for path in strange if not path.exists()] == []


def unsafe(pattern: bytes):
    return lambda monkeypatch: monkeypatch.setattr(layout, "_UNSAFE", re.compile(pattern))


class TestPlantedFaults(PlantedFaultTests):
    faults = (
        Fault("percent signs stay", test_two_model_ids_have_two_folders, unsafe(rb"[^A-Za-z0-9._%-]|^\.")),
        Fault("dots stay in front", test_a_model_id_becomes_one_safe_folder_name, unsafe(rb"[^A-Za-z0-9._-]")),
        Fault("separators stay", test_a_model_id_becomes_one_safe_folder_name, unsafe(rb"[^A-Za-z0-9._/-]|^\.")),
        Fault(
            "long names are cut",
            test_two_model_ids_have_two_folders,
            Replacement(layout, "folder_name", "{hashlib.sha256(raw).hexdigest()}", ""),
        ),
        Fault(
            "any .npy is a page",
            test_only_pages_are_evicted_scanned_and_deleted,
            Replacement(layout, "is_page", "_FILE.fullmatch(name) is not None", 'name.endswith(".npy")'),
        ),
        Fault(
            "a page of another shard is a page",
            test_only_pages_are_evicted_scanned_and_deleted,
            Replacement(layout, "is_page", "name.startswith(shard)", "True"),
        ),
        Fault(
            "any number is a page size",
            test_only_pages_are_evicted_scanned_and_deleted,
            Replacement(layout, "is_page_size", "_PAGE_SIZE.fullmatch(name) is not None", "name.isdigit()"),
        ),
        Fault(
            "links are followed",
            test_only_pages_are_evicted_scanned_and_deleted,
            Replacement(Pages, "in_shard_of", "os.stat(folder, follow_symlinks=False)", "os.stat(folder)"),
        ),
        Fault(
            "hidden folders are models",
            test_only_pages_are_evicted_scanned_and_deleted,
            Replacement(Pages, "scopes", "not layout.is_model(model.name)", "False"),
        ),
    )
