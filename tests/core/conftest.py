"""Plugins made for one test: real modules in a temporary folder, loaded by the real discovery."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcache_conformance.installed import DISTRIBUTIONS, registry_of
from kvcache_core.registry.discovery import discover
from kvcache_core.registry.records import PluginRecord, PluginSource
from kvcache_core.registry.registry import Registry

HEADER = """
from kvcache_core.registry.descriptors import *
from kvcache_core.registry.hookspecs import hookimpl
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PluginSource]:
    """`plugin(name, body)` writes a module and gives the source of an entry point that names it."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(
        name: str, body: str, *, distribution: str | None = None, version: str = "1.0", group: str = "kvcache.v1"
    ) -> PluginSource:
        module = f"{tmp_path.name.replace('-', '_')}_{name}"
        (folder / f"{module}.py").write_text(HEADER + textwrap.dedent(body))
        return PluginSource(name, module, group, distribution or f"acme-{name}", version)

    return write


@pytest.fixture
def found(plugin: Callable[..., PluginSource]) -> Callable[..., PluginRecord]:
    """`found(body)`: the record of a plugin with that body."""
    return lambda body, name="mine", **more: discover([plugin(name, body, **more)])[0]


FILE_PLUGIN = """
class Options(PluginOptions):
    path: str = "~/.cache/l3"
    max_bytes: int | None = None

@hookimpl
def kvcache_storage_backends():
    flags = (("path", "--hicache-storage-path"),)
    return [StorageBackendDescriptor(name="file", summary="files", factory="x.y:z", options=Options, flags=flags)]
"""
OTHER_PLUGIN = """
class Options(PluginOptions):
    bucket: str
    label: str | int = ""

@hookimpl
def kvcache_storage_backends():
    flags = (("label", "--hicache-other-label"),)
    return [StorageBackendDescriptor(name="other", summary="other", factory="x.y:z", options=Options, flags=flags)]
"""


@pytest.fixture
def everything(plugin: Callable[..., PluginSource]) -> Registry:
    """All of our cache types and components, and the storage backends `file` (no option required) and `other` (one required)."""
    storage = discover([plugin("file", FILE_PLUGIN), plugin("other", OTHER_PLUGIN)])
    assert all(record.ok for record in storage), storage
    return registry_of(*DISTRIBUTIONS, more=tuple(storage))
