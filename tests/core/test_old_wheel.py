"""A wheel that was built when 0.1 was new still works: fixtures/ keeps it as it was then, and nothing here builds it again.

It is examples/third_party_storage of that day. When this fails, plugins that people have published fail as well: either the core
stays able to load them, or the version of the plugin API goes up, and the failure becomes the expected answer.
"""

import json
from pathlib import Path

import pytest

from kvcache_conformance.clean_environment import CleanEnvironment

WHEEL = Path(__file__).parent / "fixtures" / "kvcache_storage_sqlite-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    made = CleanEnvironment(tmp_path_factory.mktemp("old") / "site")
    made.unpack(WHEEL)
    for name in ("kvcache-conformance", "kvcache-unified-hicache", "kvcache-component-full"):
        made.link(name)
    return made


def test_it_is_listed_and_whole(environment, tmp_path):
    plugins = json.loads(environment.kvcache("plugins", "list", "--json", cwd=tmp_path).stdout)["plugins"]
    (sqlite,) = [plugin for plugin in plugins if plugin["distribution"] == "kvcache-storage-sqlite"]
    assert (sqlite["version"], sqlite["ok"], sqlite["group"]) == ("1.0", True, "kvcache.v1")
    assert [(offer["kind"], offer["name"]) for offer in sqlite["provides"]] == [("storage backend", "sqlite")]
    checks = json.loads(environment.kvcache("plugins", "doctor", "--json", cwd=tmp_path).stdout)["checks"]
    mine = {check["what"]: check["error"] for check in checks if check["distribution"] == "kvcache-storage-sqlite"}
    assert mine == {"discovery": None, "storage backend sqlite: kvcache_storage_sqlite.store:SqliteStorage": None}


def test_a_configuration_may_name_it(environment, tmp_path):
    config = tmp_path / "cache.yaml"
    config.write_text("model_class: full_attention\nhicache: {storage: {kind: sqlite, path: pages.db}}\n", encoding="utf-8")
    done = environment.kvcache("config", "validate", "cache.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout.partition(";")[0]) == (0, "cache.yaml: valid")
    config.write_text("hicache: {storage: {kind: sqlite, pth: pages.db}}\n", encoding="utf-8")
    done = environment.kvcache("config", "validate", "cache.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "cache.yaml:1:35: hicache.storage.pth: unknown key (did you mean 'path'?)" in done.stdout


def test_it_passes_the_basic_kit(environment, tmp_path):
    done = environment.kvcache("conformance", "storage", "sqlite", "--parts", "basic", "threads", "machine", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "it conforms"), done.stdout
