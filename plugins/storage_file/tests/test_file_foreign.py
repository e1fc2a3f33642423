"""Folders and files of others in the root, however much they look like pages (FAULTS S7, K6)."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import numbered_key, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file import layout
from kvcache_storage_file.layout import NAME_FILE, folder_name
from kvcache_storage_file.writer import Writer

KEY = numbered_key(1)
LONG = "org/" + "x" * 300
FOREIGN = (
    b"my data",
    b"caf%E9",
    b"caf\xe9",
    b"caf\xe9%20",
    b"a%2fb",
    b"100%",
    b"%41",
    b"%-",
    b"%-0123",
    b"lost+found",
    b".hidden",
    b"x" * 201,
    b"y" * 99 + b"%-" + b"0" * 64,
    "ü".encode(),
)
"""Names that no model id has."""


def strangers(root) -> list[Path]:
    """In each of those folders one file where a page would be, all of them old."""
    files = [root.path / os.fsdecode(name) / "16" / KEY[:2] / f"{KEY}.npy" for name in FOREIGN]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"not yours" * 100)
        os.utime(file, (1, 1))
    return files


def test_a_folder_that_no_model_id_has_is_neither_named_nor_emptied(root):
    files = strangers(root)
    storage = root.open(max_bytes=2600)
    store_numbered(storage, range(10), 1000)
    assert sorted(page.key for page in storage.scan()) == sorted(numbered_key(number) for number in (8, 9))
    storage.check_integrity()
    for name in FOREIGN:
        other = root.open(StorageScope(os.fsdecode(name), 16))
        other.delete([KEY])
    assert [file for file in files if not file.exists()] == []


def test_every_page_that_is_named_can_be_removed_by_its_name(root):
    ids = ["plain", "org/name", "my data", "café", "a%2Fb", ".dot", "line\r\nend\r", "\udce9", LONG, "é\r\n" * 100, ""]
    strangers(root)
    for model_id in ids:
        store_numbered(root.open(StorageScope(model_id, 16)), [7], 100)
    found = list(root.open().scan())
    assert sorted(page.model_id for page in found) == sorted(ids)
    for page in found:
        root.open(StorageScope(page.model_id, page.page_size)).delete([page.key])
    assert list(root.open().scan()) == []


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"another model", None], ids=["bytes", "empty", "another", "missing"])
def test_a_folder_whose_name_file_is_spoilt_is_not_named_and_is_mended_by_the_next_write(root, content):
    store_numbered(root.open(StorageScope(LONG, 16)), [1, 2], 1000)
    store_numbered(root.open(), [3], 1000)
    name = root.path / folder_name(LONG) / NAME_FILE
    name.unlink() if content is None else name.write_bytes(content)
    limited = root.open(max_bytes=3500)
    assert {page.model_id for page in limited.scan()} == {"model"}
    store_numbered(root.open(StorageScope(LONG, 16)), [4], 100)
    assert name.read_bytes() == LONG.encode()
    assert {page.model_id for page in limited.scan()} == {"model", LONG}
    # Its pages counted all the time: there is room for no more than the limit.
    limited.check_integrity()
    store_numbered(limited, range(10, 13), 1000)
    assert root.bytes() <= 3500


@given(st.one_of(st.text(), st.text(alphabet="aé%-.4 \udce9/", max_size=220)))
def test_a_folder_is_a_models_only_if_its_name_leads_back_to_it(name):
    model_id = layout.model_id_of(name)
    assert model_id is None or folder_name(model_id) == name
    assert layout.is_model(folder_name(name))


class TestPlantedFaults(PlantedFaultTests):
    faults = (
        Fault(
            "what looks alike is ours",
            test_a_folder_that_no_model_id_has_is_neither_named_nor_emptied,
            Replacement(layout, "model_id_of", "if folder_name(model_id) == folder else None", ""),
        ),
        Fault(
            "anything with the mark is a hash",
            test_a_folder_that_no_model_id_has_is_neither_named_nor_emptied,
            Replacement(layout, "is_hashed", "_HASHED_NAME.fullmatch(folder) is not None", "_HASHED in folder"),
        ),
        Fault(
            "a name file is believed",
            lambda root: test_a_folder_whose_name_file_is_spoilt_is_not_named_and_is_mended_by_the_next_write(root, b"another"),
            Replacement(layout, "model_id_of", "if folder_name(model_id) == folder else None", ""),
        ),
        Fault(
            "a spoilt name file stays",
            lambda root: test_a_folder_whose_name_file_is_spoilt_is_not_named_and_is_mended_by_the_next_write(root, b"\xff"),
            Replacement(Writer, "_write_name", "or name.read_bytes() != text", ""),
        ),
    )
