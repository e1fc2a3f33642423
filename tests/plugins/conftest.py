"""Environments with real distributions: the core alone, and our two caches among plugins that are broken in every way."""

from pathlib import Path

import pytest

from kvcache_conformance.clean_environment import CleanEnvironment

HEADER = """
from kvcache_core.registry.descriptors import *
from kvcache_core.registry.hookspecs import hookimpl


class Options(PluginOptions):
    path: str = "/x"


def backend(name, factory="nowhere.store:open_store"):
    return StorageBackendDescriptor(name=name, summary="pages", factory=factory, options=Options)
"""
GOOD = """
@hookimpl
def kvcache_storage_backends():
    return [backend("good", "acme_good:Options")]
"""
BROKEN = {
    "imports": "import zstd_that_nobody_has",
    "halfway": """
@hookimpl
def kvcache_storage_backends():
    yield backend("first_half")
    raise RuntimeError("no second half")
""",
    "misspelt": """
@hookimpl
def kvcache_storage_backend():
    return [backend("misspelt")]
""",
    "wrong_type": """
@hookimpl
def kvcache_storage_backends():
    return [CacheTypeDescriptor(name="wrong_type", summary="a cache", factory="nowhere:make")]
""",
}
"""Plugins of one module each, by the name of entry point and distribution."""
HOLLOW = """
@hookimpl
def kvcache_cache_types():
    return [CacheTypeDescriptor(name="hollow_cache", summary="an empty shell", factory="acme_hollow:make")]

@hookimpl
def kvcache_commands():
    return [CommandDescriptor(name="hollow", summary="an empty shell", configure="acme_hollow:configure", run="acme_gone:run")]

def configure(parser):
    pass
"""
TWIN = """
@hookimpl
def kvcache_storage_backends():
    return [backend("twin", "acme_good:Options")]
"""


def write_plugin(environment: CleanEnvironment, name: str, body: str, version: str = "1.0", group: str = "kvcache.v1") -> None:
    """Install the distribution acme-NAME, whose module acme_NAME is the plugin."""
    module = f"acme_{name}"
    environment.write(f"acme-{name.replace('_', '-')}", version, {name: module}, {f"{module}.py": HEADER + body}, group)


@pytest.fixture(scope="session")
def core_alone(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    return CleanEnvironment(tmp_path_factory.mktemp("core_alone") / "site")


@pytest.fixture(scope="session")
def sick(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Three sound distributions: ours, and acme-good. Nobody in his right mind has the others."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("sick") / "site")
    environment.link("kvcache-chunk")
    environment.link("kvcache-radix")
    write_plugin(environment, "good", GOOD)
    for name, body in BROKEN.items():
        write_plugin(environment, name, body)
    environment.write("acme-missing", "1.0", {"missing": "acme_missing.plugin"}, {})
    write_plugin(environment, "twin_one", TWIN, version="1.1")
    write_plugin(environment, "twin_two", TWIN, version="2.2")
    write_plugin(
        environment, "future", "raise AssertionError('a plugin of another API version was imported')", group="kvcache.v2"
    )
    write_plugin(environment, "hollow", HOLLOW)
    return environment


@pytest.fixture(scope="session")
def broken_radix(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """ChunkCache, and a kvcache-radix that lacks something of its own."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("broken_radix") / "site")
    environment.link("kvcache-chunk")
    environment.write("kvcache-radix", "0.0.9", {"radix": "kvcache_radix_plugin"}, {"kvcache_radix_plugin.py": "import gone"})
    return environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `kvcache` runs. `cache.yaml` asks for what every environment but the first one has."""
    (tmp_path / "cache.yaml").write_text("cache_type: chunk_cache\npage_size: 8\n")
    return tmp_path
