"""What a command does to a store that it only looks at: nothing. What it does beside what it was asked for: nothing."""

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage.commands import opened, verify_pages

HOUR, DAY = 3600, 86400


def test_an_empty_store_is_no_error(store, kvcache):
    store.opened("org/a").close()
    assert kvcache("inspect")[:2] == (0, "storage 'file': no pages\n")
    assert kvcache("verify")[0] == 0
    assert kvcache("prune", "--older-than", "1d")[0] == 0


LOOKING = [("inspect",), ("verify",), ("prune", "--older-than", "1d", "--dry-run")]


@pytest.mark.parametrize("arguments", LOOKING, ids=lambda words: words[0])
def test_a_store_that_is_not_there_is_an_error_and_is_not_made(store, kvcache, arguments):
    """A slip in the path must not look like an empty store, nor leave one behind."""
    status, out, err = kvcache(*arguments)
    assert (status, out) == (2, "")
    assert f"{str(store.root)!r}: No such file or directory" in err
    assert not store.root.exists()


def state(folder):
    """Everything below: names, sizes, and the times at which files and folders were changed."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (folder, *folder.rglob("*"))}


def test_looking_changes_nothing_at_all(store, kvcache):
    """Neither a time of use nor what a killed process has left."""
    keys = store.hold("org/a", HOUR, 2 * HOUR, 9 * DAY)
    store.spoil(keys[1])
    killed = store.root / ".kvcache" / "0123456789abcdef"
    killed.mkdir()
    (killed / "lock").touch()
    (killed / "0.tmp").write_bytes(b"half a page")
    before = state(store.root)
    assert [kvcache(*arguments)[0] for arguments in LOOKING] == [0, 1, 0]
    assert state(store.root) == before


@pytest.mark.parametrize("arguments", [*LOOKING, ("check",)], ids=lambda words: words[0])
def test_looking_makes_no_room(store, kvcache, arguments):
    """A limit in the configuration is the cache's business: a command removes what it says, and nothing else."""
    keys = store.hold("org/a", *range(HOUR, 9 * HOUR, HOUR))
    limited = store.config.read_text(encoding="utf-8").replace("min_free_bytes: 0", "min_free_bytes: 0, max_bytes: 4KiB")
    store.config.write_text(limited, encoding="utf-8")
    assert kvcache(*arguments)[0] == 0
    assert store.left() == set(keys)


def test_prune_and_verify_remove_what_they_say_and_nothing_else(store, kvcache):
    keys = store.hold("org/a", *range(HOUR, 9 * HOUR, HOUR), 9 * DAY)
    limited = store.config.read_text(encoding="utf-8").replace("min_free_bytes: 0", "min_free_bytes: 0, max_bytes: 2KiB")
    store.config.write_text(limited, encoding="utf-8")
    store.spoil(keys[3])
    assert "removed 1 page" in kvcache("prune", "--older-than", "1d")[1]
    assert "1 bad" in kvcache("verify", "--remove")[1]
    assert store.left() == set(keys[:-1]) - {keys[3]}


class TestFaultsOfLooking(PlantedFaultTests):
    faults = (
        Fault(
            "to list the pages makes a store",
            lambda store, kvcache: test_a_store_that_is_not_there_is_an_error_and_is_not_made(store, kvcache, ("inspect",)),
            Replacement(opened.ConfiguredStorage, "pages", "read_only=True", "read_only=False"),
        ),
        Fault(
            "verifying changes the store",
            test_looking_changes_nothing_at_all,
            Replacement(verify_pages, "verify", "read_only=not remove", "read_only=False"),
        ),
        Fault(
            "opening makes room",
            test_prune_and_verify_remove_what_they_say_and_nothing_else,
            Replacement(opened.ConfiguredStorage, "__init__", "if limited else slot.options", "if False else slot.options"),
        ),
    )
