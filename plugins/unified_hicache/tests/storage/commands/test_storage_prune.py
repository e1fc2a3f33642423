"""`kvcache storage prune`: removal by age, size and model, of pages and nothing else."""

import json

import numpy as np

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage.commands import prune_pages, units

HOUR, DAY = 3600, 86400


def test_prune_by_age(store, kvcache):
    keys = store.hold("org/a", HOUR, 6 * DAY, 8 * DAY)
    others = store.hold("org/b", 9 * DAY)
    status, out, _ = kvcache("prune", "--older-than", "7d", "--dry-run")
    assert status == 0
    assert "would remove 1 page" in out
    assert "would be left: 2 pages" in out
    assert store.left() == {*keys, *others}
    status, out, _ = kvcache("prune", "--older-than", "7d")
    assert status == 0
    size = units.size_text(store.page_bytes)
    assert f"removed 1 page ({size}) of org/a, page size 16" in out
    assert f"removed 1 page ({size}) of org/b, page size 16" in out
    assert store.left() == set(keys[:2])
    assert kvcache("prune", "--older-than", "7d")[1].startswith("nothing to remove: every page was used within 7 d")


def test_prune_by_size_takes_the_least_recently_used(store, kvcache):
    keys = store.hold("org/a", 1 * DAY, 4 * DAY, 2 * DAY, 3 * DAY)
    status, out, _ = kvcache("prune", "--max-bytes", str(2 * store.page_bytes + 1), "--json")
    report = json.loads(out)
    assert status == 0
    assert report["removed"] == [{"model_id": "org/a", "page_size": 16, "pages": 2, "nbytes": 2 * store.page_bytes, "failed": 0}]
    assert (report["pages_before"], report["dry_run"]) == (4, False)
    assert store.left() == {keys[0], keys[2]}


def test_prune_by_model_leaves_the_others(store, kvcache):
    a, b = store.hold("org/a", 1, 2), store.hold("org/b", 9 * DAY)
    store.hold("org/a", 3, page_size=64)
    assert kvcache("prune", "--model", "org/b", "--older-than", "10d")[0] == 0
    assert kvcache("prune", "--model", "org/a", "--max-bytes", "1GiB")[1].startswith("nothing to remove\n")
    assert len(store.left()) == 4
    status, out, _ = kvcache("prune", "--model", "org/a")
    assert status == 0
    assert "page size 16" in out and "page size 64" in out
    assert store.left() == set(b)
    assert set(a).isdisjoint(store.left())
    assert "no page of model org/a; there are: org/b" in kvcache("prune", "--model", "org/a")[1]


def test_prune_touches_nothing_but_pages(store, kvcache):
    """S7: other files in the same folders stay, even those that look like pages."""
    keys = store.hold("org/a", 9 * DAY)
    folder = store.file(keys[0]).parent
    strangers = [store.root / "notes.txt", folder / "readme.npy", folder.parent / f"{'c' * 64}.npy"]
    for stranger in strangers:
        np.save(stranger, np.zeros(3)) if stranger.suffix == ".npy" else stranger.write_text("mine")
    assert kvcache("prune", "--max-bytes", "0")[0] == 0
    assert all(stranger.exists() for stranger in strangers)
    assert keys[0] not in store.left()


def test_pages_that_cannot_be_deleted_are_said(store, kvcache, monkeypatch):
    """S6: they stop none of the others."""
    keys = store.hold("org/a", 1, 2, 3)
    backend = type(store.opened("org/a"))
    delete = backend.delete

    def fails_for_one(self, which):
        delete(self, [key for key in which if key != keys[1]])

    monkeypatch.setattr(backend, "delete", fails_for_one)
    status, out, _ = kvcache("prune", "--model", "org/a")
    assert status == 1
    assert "removed 2 pages" in out
    assert "1 page could not be removed" in out
    assert store.left() == {keys[1]}


def test_prune_wants_to_know_which(store, kvcache):
    store.hold("org/a", 1)
    status, out, err = kvcache("prune")
    assert (status, out) == (2, "")
    assert "--older-than 7d" in err
    assert len(store.left()) == 1


class TestFaultsOfPrune(PlantedFaultTests):
    faults = (
        Fault(
            "another model's pages go",
            test_prune_by_model_leaves_the_others,
            Replacement(prune_pages, "doomed", "if conditions.model in (None, page.model_id)", "if True"),
        ),
        Fault(
            "the newest go first",
            test_prune_by_size_takes_the_least_recently_used,
            Replacement(prune_pages, "doomed", "key=lambda page: page.used", "key=lambda page: -page.used"),
        ),
        Fault(
            "a dry run that is none",
            test_prune_by_age,
            Replacement(prune_pages, "remove", "if not dry_run:", "if True:"),
        ),
        Fault(
            "removed by its own word",
            test_pages_that_cannot_be_deleted_are_said,
            Replacement(prune_pages, "_delete", "if there}", "if False}"),
        ),
    )
