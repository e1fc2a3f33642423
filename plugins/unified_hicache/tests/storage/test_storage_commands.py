"""`kvcache storage ...` over real files: what it counts, finds, removes and says, and when it refuses."""

import hashlib
import json
import os
import subprocess
import sys
import time
from typing import Any, cast

import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.cli import main
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.loading import load_target
from kvcache_unified_hicache.storage.commands import opened, prune_pages, units, verify_pages
from kvcache_unified_hicache.storage.commands.inspect_pages import groups_of
from kvcache_unified_hicache.storage.commands.progress import Progress
from kvcache_unified_hicache.storage.page_frame import PageFrame

FRAME = PageFrame((PageArray("k.0", "bfloat16", (100,)),))
HOUR, DAY = 3600, 86400


class Store:
    """A folder with a configuration beside it. Pages are written by the backend; their ages are set from outside."""

    def __init__(self, folder):
        self.root = folder / "pages"
        self.config = folder / "cache.yaml"
        self.config.write_text(f"hicache:\n  storage: {{kind: file, path: {self.root}, min_free_bytes: 0}}\n", encoding="utf-8")
        self.offer = default_registry().storage("file")

    def opened(self, model_id, page_size=16):
        options = self.offer.descriptor.options.model_validate({"path": str(self.root), "min_free_bytes": 0})
        return load_target(self.offer.descriptor.factory, self.offer.source)(options, StorageScope(model_id, page_size))

    def hold(self, model_id, *ages, page_size=16):
        """One page for each age in seconds; gives their keys."""
        keys = []
        for number, age in enumerate(ages):
            key = hashlib.sha256(f"{model_id} {page_size} {number} {age}".encode()).hexdigest()
            value = FRAME.new_value()
            FRAME.seal(key, value)
            backend = self.opened(model_id, page_size)
            backend.set([key], [value])
            backend.close()
            used = time.time() - age
            os.utime(self.file(key), (used, used))
            keys.append(key)
        return keys

    def file(self, key):
        (found,) = self.root.rglob(f"{key}.npy")
        return found

    def left(self):
        return {path.stem for path in self.root.rglob("*.npy")}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def kvcache(store, capsys):
    """Runs `kvcache storage ...` with the store's configuration; gives exit status, standard output and standard error."""

    def run(command, *arguments):
        status = main(["storage", command, str(store.config), *arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_inspect_counts_by_model_page_size_and_age(store, kvcache):
    store.hold("org/small", 60, 2 * HOUR, 2 * DAY, 40 * DAY)
    store.hold("org/small", 60, page_size=64)
    store.hold("org_small", 8 * DAY)
    status, out, _ = kvcache("inspect", "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["pages"], report["bytes"]) == (6, 6 * FRAME.file_bytes)
    groups = {(group["model_id"], group["page_size"]): group for group in report["groups"]}
    assert list(groups) == [("org/small", 16), ("org/small", 64), ("org_small", 16)]
    small = groups["org/small", 16]
    assert small["pages_by_age"] == {"1h": 1, "1d": 1, "7d": 1, "30d": 0, "older": 1}
    assert (small["pages"], small["bytes"]) == (4, 4 * FRAME.file_bytes)
    assert 60 <= small["newest_use_seconds"] < HOUR
    assert 40 * DAY <= small["oldest_use_seconds"] < 41 * DAY


def test_inspect_prints_a_table(store, kvcache):
    store.hold("org/small", 60, 8 * DAY)
    status, out, _ = kvcache("inspect")
    assert status == 0
    head, row, total = out.splitlines()[1:]
    assert head.split() == [
        "model",
        "page",
        "size",
        "pages",
        "size",
        "<",
        "1h",
        "<",
        "1d",
        "<",
        "7d",
        "<",
        "30d",
        "older",
        "last",
        "use",
    ]
    size = units.size_text(2 * FRAME.file_bytes).split()
    assert row.split() == ["org/small", "16", "2", *size, "1", "0", "0", "1", "0", "1", "m", "ago"]
    assert total.split() == ["all", "2", *size]


def test_an_empty_store_is_no_error(store, kvcache):
    store.opened("org/a").close()
    assert kvcache("inspect")[:2] == (0, "storage 'file': no pages\n")
    assert kvcache("verify")[0] == 0
    assert kvcache("prune", "--older-than", "1d")[0] == 0


def spoil(file, at=130):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def test_verify_finds_every_bad_page(store, kvcache):
    """Without any model: pages of all models and page sizes describe themselves."""
    a = store.hold("org/a", 1, 2, 3)
    b = store.hold("org/b", 1, 2, page_size=64)
    assert kvcache("verify")[:2] == (0, f"5 good pages, 0 bad, {units.size_text(5 * FRAME.file_bytes)} read\n")
    spoil(store.file(a[1]))
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
    spoil(store.file(keys[1]))
    status, out, _ = kvcache("verify", "--remove", "--json")
    report = json.loads(out)
    assert status == 1
    assert report["good"] == 2
    assert [(bad["key"], bad["reason"], bad["removed"]) for bad in report["bad"]] == [(keys[1], "bad page: checksum", True)]
    assert store.left() == {keys[0], keys[2]}
    assert kvcache("verify")[0] == 0


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
    size = units.size_text(FRAME.file_bytes)
    assert f"removed 1 page ({size}) of org/a, page size 16" in out
    assert f"removed 1 page ({size}) of org/b, page size 16" in out
    assert store.left() == set(keys[:2])
    assert kvcache("prune", "--older-than", "7d")[1].startswith("nothing to remove: every page was used within 7 d")


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
    spoil(store.file(keys[1]))
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
    spoil(store.file(keys[3]))
    assert "removed 1 page" in kvcache("prune", "--older-than", "1d")[1]
    assert "1 bad" in kvcache("verify", "--remove")[1]
    assert store.left() == set(keys[:-1]) - {keys[3]}


def test_prune_by_size_takes_the_least_recently_used(store, kvcache):
    keys = store.hold("org/a", 1 * DAY, 4 * DAY, 2 * DAY, 3 * DAY)
    status, out, _ = kvcache("prune", "--max-bytes", str(2 * FRAME.file_bytes + 1), "--json")
    report = json.loads(out)
    assert status == 0
    assert report["removed"] == [{"model_id": "org/a", "page_size": 16, "pages": 2, "nbytes": 2 * FRAME.file_bytes, "failed": 0}]
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


def test_check_does_the_self_test(store, kvcache):
    status, out, _ = kvcache("check")
    assert status == 0
    assert out.splitlines()[-1] == "storage 'file' works"
    assert "exists, before" in out and " ms" in out
    assert store.left() == set()
    report = json.loads(kvcache("check", "--json")[1])
    assert report["works"] and len(report["steps"]) == 7


def test_check_fails_with_the_reason_and_the_place(store, kvcache):
    """C5: a root that cannot be a folder."""
    store.root.write_text("a file")
    status, out, err = kvcache("check")
    assert (status, out) == (1, "")
    assert str(store.root) in err
    assert f"{store.config}:2:" in err
    assert json.loads(kvcache("check", "--json")[1])["works"] is False


@pytest.mark.parametrize("command", ["inspect", "verify", "check"])
@pytest.mark.parametrize("text", ["", "hicache: {}\n", "hicache: {storage: none}\n"])
def test_a_configuration_without_storage_is_refused(store, kvcache, command, text):
    store.config.write_text(text)
    status, out, err = kvcache(command)
    assert (status, out) == (2, "")
    assert f"{store.config} has no storage" in err
    assert "--hicache-storage file" in err


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_backend_that_cannot_list_is_refused(store, kvcache, command, monkeypatch):
    from dataclasses import replace

    registry = default_registry()
    offer = registry.storage("file")
    blind = replace(offer, descriptor=replace(offer.descriptor, capabilities=frozenset()))
    monkeypatch.setattr(type(registry), "storage", lambda self, name: blind)
    status, out, err = kvcache(command)
    assert (status, out) == (2, "")
    assert "'file' cannot list its pages" in err


def test_a_mistake_in_the_configuration_is_shown_with_its_place(store, kvcache):
    store.config.write_text("hicache:\n  storage: {kind: file, pathh: x}\n")
    status, _, err = kvcache("inspect")
    assert status == 2
    assert f"{store.config}:2:" in err and "did you mean" in err


IMPORTS = """
import pkgutil, sys
import kvcache_unified_hicache.storage as storage
for module in pkgutil.walk_packages(storage.__path__, storage.__name__ + "."):
    __import__(module.name)
found = [name for name in sys.modules if name.startswith(storage.__name__)]
print(len(found) > 15, "jax" in sys.modules, "ml_dtypes" in sys.modules)
"""


def test_no_module_of_storage_imports_jax():
    """A command answers without waiting for it."""
    run = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split() == ["True", "False", "False"]


def test_the_group_alone_shows_its_commands(capsys):
    assert main(["storage"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("inspect", "verify", "prune", "check"))


@pytest.mark.parametrize("text", ["7", "d", "-1d", "7 weeks", "nan d", "1e9d", ""])
def test_an_age_that_is_none_is_refused(kvcache, text, capsys):
    with pytest.raises(SystemExit) as caught:
        kvcache("prune", f"--older-than={text}")
    assert caught.value.code == 2
    assert "such as 12h or 7d" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["10GB", "10 gigs", "-1", "1.5GiB", ""])
def test_a_size_that_is_none_is_refused(kvcache, text, capsys):
    with pytest.raises(SystemExit) as caught:
        kvcache("prune", f"--max-bytes={text}")
    assert caught.value.code == 2
    assert "KiB, MiB, GiB or TiB" in capsys.readouterr().err


def test_sizes_and_times_are_read_and_written():
    assert [units.size(text) for text in ("0", "3KiB", "10 GiB")] == [0, 3072, 10 * 2**30]
    assert [units.duration(text) for text in ("90s", "30m", "12h", "7d", "1.5d")] == [90, 1800, 43200, 604800, 129600]
    assert [units.size_text(n) for n in (0, 1023, 1024, 3 * 2**29, 2**51)] == ["0 B", "1023 B", "1 KiB", "1.5 GiB", "2048 TiB"]
    assert [units.duration_text(n) for n in (0, 59, 3599, 7200, 129600)] == ["0 s", "59 s", "60 m", "2 h", "1.5 d"]
    assert [units.count_text(n, "page") for n in (0, 1, 2000)] == ["0 pages", "1 page", "2,000 pages"]


def test_a_page_from_the_future_is_new():
    """Clocks of machines that share a store differ."""
    from kvcache_core.contracts.storage import StoredPage

    (group,) = groups_of([StoredPage("a" * 64, "m", 1, 10, 5000.0)], now=1000.0).values()
    assert (group.ages["1h"], group.oldest) == (1, 0.0)


class TestFaultsOfCommands(PlantedFaultTests):
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
