"""`kvcache storage verify`: every bad page is found, and removed when it is asked for."""

import json
import sys
from typing import Any, cast

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage.commands import units, verify_pages
from kvcache_unified_hicache.storage.commands.progress import Progress

HOUR, DAY = 3600, 86400


def test_verify_finds_every_bad_page(store, kvcache):
    """Without any model: pages of all models and page sizes describe themselves."""
    a = store.hold("org/a", 1, 2, 3)
    b = store.hold("org/b", 1, 2, page_size=64)
    assert kvcache("verify")[:2] == (0, f"5 good pages, 0 bad, {units.size_text(5 * store.page_bytes)} read\n")
    store.spoil(a[1])
    store.file(b[0]).write_bytes(store.file(a[0]).read_bytes())
    status, out, err = kvcache("verify")
    assert status == 1
    assert err == ""
    assert f"{a[1]}: bad page: checksum (org/a, page size 16" in out
    assert f"{b[0]}: bad page: checksum (org/b, page size 64" in out
    assert "3 good pages, 2 bad" in out
    assert "--remove" in out
    assert store.left() == {*a, *b}


def test_verify_removes_bad_pages_and_no_others(store, kvcache):
    keys = store.hold("org/a", 1, 2, 3)
    store.spoil(keys[1])
    status, out, _ = kvcache("verify", "--remove", "--json")
    report = json.loads(out)
    assert status == 1
    assert report["good"] == 2
    assert [(bad["key"], bad["reason"], bad["removed"]) for bad in report["bad"]] == [(keys[1], "bad page: checksum", True)]
    assert store.left() == {keys[0], keys[2]}
    assert kvcache("verify")[0] == 0


@pytest.mark.parametrize("answer", [[], [7], None], ids=["too few", "a number", "none"])
def test_a_wrong_answer_about_what_is_left_removed_nothing(store, kvcache, monkeypatch, answer):
    """B2: what cannot be told is not called removed."""
    keys = store.hold("org/a", 1, 2)
    store.spoil(keys[1])
    monkeypatch.setattr(type(store.opened("org/a")), "exists", lambda self, which: answer)
    status, out, err = kvcache("verify", "--remove")
    assert (status, err) == (1, "")
    assert "1 bad page could not be removed" in out


def test_verify_keeps_the_order_of_use(store, kvcache):
    """Reading counts as use: the least recently used pages are read first, so that they go first afterwards as well."""
    keys = store.hold("org/a", 3 * DAY, 1 * DAY, 2 * DAY)
    read = []
    backend = store.opened("org/a")
    configured = ScriptedScan(backend, read)
    with Progress(quiet=True) as progress:
        verify_pages.verify(cast(Any, configured), progress, remove=False)
    backend.close()
    assert read == [keys[0], keys[2], keys[1]]


class ScriptedScan:
    """Stands for the configured storage, and writes down what is read."""

    def __init__(self, backend, read):
        self.backend = backend
        self.read = read

    def pages(self):
        return self.backend.scan()

    def opened(self, scope):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def get(self, keys):
        self.read += keys
        return self.backend.get(keys)


def test_one_page_that_cannot_be_read_does_not_hide_the_others(store, monkeypatch):
    keys = store.hold("org/a", 1, 2, 3)
    backend = store.opened("org/a")

    get = backend.get

    def fails_for_one(which):
        if keys[1] in which:
            raise OSError(5, "Input/output error")
        return get(which)

    monkeypatch.setattr(backend, "get", fails_for_one)
    pages = sorted(backend.scan(), key=lambda page: keys.index(page.key))
    assert verify_pages._read(backend, pages) == ["", "cannot be read: OSError: [Errno 5] Input/output error", ""]
    backend.close()


def test_a_page_that_a_batch_leaves_out_is_not_called_gone(store, kvcache):
    """B1: whoever reads many pages at once is content with those that can be read; whoever verifies is not."""
    keys = store.hold("org/a", 1, 2, 3)
    store.cannot_be_read(keys[1])
    status, out, _ = kvcache("verify", "--json")
    report = json.loads(out)
    assert status == 1
    assert (report["good"], report["gone"], report["bytes_read"]) == (2, 0, 3 * store.page_bytes)
    [bad] = report["bad"]
    assert bad["key"] == keys[1] and bad["reason"].startswith("cannot be read: PermissionError: [Errno 13] Permission denied")


def test_a_page_that_went_meanwhile_is_no_bad_page(store):
    keys = store.hold("org/a", 1, 2, 3)
    backend = store.opened("org/a")
    pages = sorted(backend.scan(), key=lambda page: keys.index(page.key))
    backend.delete(keys[1:2])
    assert verify_pages._read(backend, pages) == ["", None, ""]
    backend.close()


def test_an_interrupted_line_of_progress_is_wiped(monkeypatch, capsys):
    """Ctrl-C as soon as the line is seen: what is said next stands alone."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def interrupted():
        raise KeyboardInterrupt

    def show():
        with Progress(quiet=False) as progress, monkeypatch.context() as patch:
            patch.setattr(sys.stderr, "flush", interrupted)
            progress.show("41 of 3,000 pages")

    with pytest.raises(KeyboardInterrupt):
        show()
    assert capsys.readouterr().err == "\r41 of 3,000 pages\r" + " " * 17 + "\r"


class TestFaultsOfVerify(PlantedFaultTests):
    faults = (
        Fault(
            "a number is a flag",
            lambda store, kvcache, monkeypatch: test_a_wrong_answer_about_what_is_left_removed_nothing(
                store, kvcache, monkeypatch, [0]
            ),
            Replacement(verify_pages, "_removed", "checked_flags(backend.exists(keys), len(keys))", "backend.exists(keys)"),
        ),
        Fault(
            "what a batch leaves out counts as gone",
            test_a_page_that_a_batch_leaves_out_is_not_called_gone,
            Replacement(verify_pages, "_read", "if len(pages) > 1:\n        # A", "if False:\n        # A"),
        ),
        Fault(
            "pages are not verified",
            test_verify_finds_every_bad_page,
            Replacement(verify_pages, "_read", "read_page(page.key, value)", "len(value)"),
        ),
        Fault(
            "good pages removed as well",
            test_verify_removes_bad_pages_and_no_others,
            Replacement(
                verify_pages, "_removed", "backend.delete(keys)", "backend.delete([page.key for page in backend.scan()])"
            ),
        ),
    )
