"""A stranger's storage plugin: built as a wheel outside the checkout, installed, listed, its options validated."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-vault"
version = "3.1"
dependencies = ["kvcache-core"]

[project.entry-points."kvcache.v1"]
vault = "acme_vault.plugin"
"""
PLUGIN = '''
"""The plugin of a stranger; it has read docs/plugins.md and nothing else."""

from pydantic import Field

from kvcache_core.registry.descriptors import PluginOptions, StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl


class VaultOptions(PluginOptions):
    """Options of the vault."""

    path: str
    shelves: int = Field(default=3, ge=1)


@hookimpl
def kvcache_storage_backends():
    """Offer the vault."""
    flags = (("path", "--hicache-storage-path"), ("shelves", "--hicache-vault-shelves"))
    vault = StorageBackendDescriptor(
        name="vault", summary="pages in a vault", factory="acme_vault.store:open_vault", options=VaultOptions, flags=flags
    )
    return [vault]
'''
Kvcache = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content: what installing a pure Python wheel into a target folder comes down to."""
    root = tmp_path_factory.mktemp("acme")
    project, site = root / "project", root / "site"
    package = project / "acme_vault"
    package.mkdir(parents=True)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(PLUGIN)
    (package / "store.py").write_text("def open_vault(options, scope):\n    raise NotImplementedError\n")
    # The build backend alone, without a front end: nothing is downloaded.
    build = "from hatchling.build import build_wheel; print(build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=project, check=True, capture_output=True, timeout=120)
    (wheel,) = (project / "dist").glob("acme_vault-3.1-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.fixture
def kvcache(site: Path, tmp_path: Path) -> Kvcache:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvcache_core", *words]
        environment = dict(os.environ) | {"PYTHONPATH": str(site)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_is_listed(kvcache: Kvcache):
    plugins = json.loads(kvcache("plugins", "list", "--json").stdout)["plugins"]
    (vault,) = [plugin for plugin in plugins if plugin["distribution"] == "acme-vault"]
    assert (vault["version"], vault["ok"]) == ("3.1", True)
    assert vault["provides"] == [{"kind": "storage backend", "name": "vault", "summary": "pages in a vault"}]


def test_options_are_validated_with_their_places(kvcache: Kvcache, tmp_path: Path):
    (tmp_path / "cache.yaml").write_text("hicache:\n  storage:\n    kind: vault\n    pth: /x\n    shelves: 0\n")
    done = kvcache("config", "validate", "cache.yaml")
    assert done.returncode == 2
    first_lines = [line for line in done.stderr.splitlines() if line.startswith("cache.yaml")]
    assert first_lines == [
        "cache.yaml:2:3: hicache.storage.path: required key is missing",
        "cache.yaml:4:5: hicache.storage.pth: unknown key (did you mean 'path'?)",
        "cache.yaml:5:14: hicache.storage.shelves: must be greater than or equal to 1, not 0",
    ]


def test_flags_and_schema_know_it(kvcache: Kvcache):
    done = kvcache(
        "config", "show", "--json", "--hicache-storage", "vault", "--hicache-storage-path", "/x", "--hicache-vault-shelves", "9"
    )
    shown = {row["path"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}
    assert shown["hicache.storage.path"] == ("/x", "--hicache-storage-path")
    assert shown["hicache.storage.shelves"] == (9, "--hicache-vault-shelves")
    schema = json.loads(kvcache("config", "schema").stdout)
    assert schema["$defs"]["storage_vault"]["required"] == ["kind", "path"]


def test_doctor_finds_its_factory(kvcache: Kvcache):
    checks = json.loads(kvcache("plugins", "doctor", "--json").stdout)["checks"]
    assert {
        "distribution": "acme-vault",
        "plugin": "vault",
        "what": "storage backend vault: acme_vault.store:open_vault",
        "error": None,
    } in checks
