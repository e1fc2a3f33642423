"""The group `kvcache storage`: what its commands refuse to begin with, and what they do not import."""

import subprocess
import sys

import pytest

from kvcache_core.cli import main
from kvcache_core.registry.default import default_registry


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
