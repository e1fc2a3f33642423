"""Broken plugins as installed distributions, seen through `kvcache`: fatal where they are asked for, harmless where not."""

import json
from pathlib import Path

import pytest

from kvcache_conformance.clean_environment import CleanEnvironment

BROKEN = {
    "acme-missing 1.0 (plugin 'missing')": ("import", "ModuleNotFoundError: No module named 'acme_missing'"),
    "acme-imports 1.0 (plugin 'imports')": ("import", "ModuleNotFoundError: No module named 'zstd_that_nobody_has'"),
    "acme-halfway 1.0 (plugin 'halfway')": ("hooks", "RuntimeError: no second half"),
    "acme-misspelt 1.0 (plugin 'misspelt')": (
        "hooks",
        "unknown hook kvcache_storage_backend (did you mean kvcache_storage_backends?)",
    ),
    "acme-wrong-type 1.0 (plugin 'wrong_type')": ("descriptors", "a hook for storage backends gave CacheTypeDescriptor("),
    "acme-future 1.0 (plugin 'future')": ("api version", "was built for plugin API v2, this kvcache-core has v1"),
    "acme-twin-one 1.1 (plugin 'twin_one')": ("duplicate name", "storage backend 'twin' is offered by acme-twin-one 1.1"),
    "acme-twin-two 2.2 (plugin 'twin_two')": ("duplicate name", "storage backend 'twin' is offered by acme-twin-one 1.1"),
}
"""By distribution, version and plugin: the stage and the beginning of the error."""

# -- asked for, and not installed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "file", "said"),
    [
        (
            ["--cache-type", "radix_cache"],
            "",
            "cache type 'radix_cache' is not installed; install it with: pip install kvcache-radix",
        ),
        ([], "disaggregation_mode: decode", "install it with: pip install kvcache-chunk"),
        (
            [],
            "hicache: {storage: redis}",
            "storage backend 'redis' is not installed; install it with: pip install kvcache-storage-redis",
        ),
        (
            [],
            "engine: {model: x}",
            "configuration section 'engine' is not installed; install it with: pip install kvcache-engine",
        ),
        ([], "hicache: {storage: vault}", "no installed plugin provides storage backend 'vault'; installed: none"),
        ([], "model_class: swa", "pip install kvcache-unified-hicache kvcache-component-full kvcache-component-swa"),
    ],
)
def test_missing_names_the_pip_command_of_ours_only(core_alone: CleanEnvironment, folder: Path, words, file: str, said: str):
    """FAULTS C2."""
    (folder / "cache.yaml").write_text(file + "\n")
    done = core_alone.kvcache("config", "validate", "cache.yaml", *words, cwd=folder)
    assert done.returncode == 2
    assert said in done.stdout
    assert ("pip install" in done.stdout) == ("vault" not in file)
    assert "Traceback" not in done.stdout


def test_missing_command_names_the_pip_command(core_alone: CleanEnvironment, folder: Path):
    done = core_alone.kvcache("run", "cache.yaml", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == "kvcache: error: command 'run' is not installed; install it with: pip install kvcache-engine\n"


# -- asked for, and broken -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "whose"),
    [
        ("missing", "acme-missing 1.0 (plugin 'missing')"),
        ("imports", "acme-imports 1.0 (plugin 'imports')"),
        # What a hook gave before it raised is known to be its plugin's, and so is the entry point's own name.
        ("first_half", "acme-halfway 1.0 (plugin 'halfway')"),
        ("halfway", "acme-halfway 1.0 (plugin 'halfway')"),
        ("misspelt", "acme-misspelt 1.0 (plugin 'misspelt')"),
        ("wrong_type", "acme-wrong-type 1.0 (plugin 'wrong_type')"),
        ("future", "acme-future 1.0 (plugin 'future')"),
    ],
)
def test_broken_names_distribution_version_stage_and_exception(sick: CleanEnvironment, folder: Path, kind: str, whose: str):
    """FAULTS C2."""
    (folder / "cache.yaml").write_text(f"hicache:\n  storage: {kind}\n")
    done = sick.kvcache("config", "validate", "cache.yaml", cwd=folder)
    stage, error = BROKEN[whose]
    assert done.returncode == 2
    said = f"cache.yaml:2:12: hicache.storage: storage backend '{kind}': {whose} is broken at stage '{stage}': {error}"
    assert done.stdout.startswith(said)
    assert done.stdout.splitlines()[1:] == [f"    2 |   storage: {kind}", f"      |            {'^' * len(kind)}"]


def test_duplicate_names_both_distributions_and_uses_neither(sick: CleanEnvironment, folder: Path):
    """FAULTS C3."""
    done = sick.kvcache("config", "validate", "cache.yaml", "--hicache-storage", "twin", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == (
        "--hicache-storage: hicache.storage: storage backend 'twin' is offered by acme-twin-one 1.1 (plugin 'twin_one') and "
        "acme-twin-two 2.2 (plugin 'twin_two'); neither is used, uninstall one of them\n"
    )


def test_broken_cache_type_and_command(sick: CleanEnvironment, folder: Path):
    trouble = "acme-imports 1.0 (plugin 'imports') is broken at stage 'import': ModuleNotFoundError"
    done = sick.kvcache("config", "explain", "--cache-type", "imports", cwd=folder)
    assert (done.returncode, f"--cache-type: cache_type: cache type 'imports': {trouble}" in done.stdout) == (2, True)
    done = sick.kvcache("imports", cwd=folder)
    assert (done.returncode, f"kvcache: error: command 'imports': {trouble}" in done.stdout) == (2, True)


def test_a_default_that_is_broken_is_not_passed_over(broken_radix: CleanEnvironment, folder: Path):
    """FAULTS C2."""
    (folder / "cache.yaml").write_text("page_size: 8\n")
    done = broken_radix.kvcache("config", "validate", "cache.yaml", cwd=folder)
    assert done.returncode == 2
    assert "radix_cache, a default for full_attention, is not passed over, because it is broken" in done.stdout
    assert (
        "kvcache-radix 0.0.9 (plugin 'radix') is broken at stage 'import': ModuleNotFoundError: No module named 'gone'"
        in done.stdout
    )
    # On another way it is nobody's business.
    done = broken_radix.kvcache("config", "validate", "cache.yaml", "--cache-type", "chunk_cache", cwd=folder)
    assert (done.returncode, done.stdout.startswith("cache.yaml: valid; chunk_cache")) == (0, True)


BUILD = """
from kvcache_core import CacheConfig, CacheDeps, build_kv_cache
from kvcache_core.config.resolve import usual_model
from kvcache_core.errors import PluginError

nothing = {"full": None}
deps = CacheDeps(model=usual_model(None), page_size=16, allocators=nothing, pools=nothing, pool_set=None, queue=None)
try:
    build_kv_cache(CacheConfig(cache_type="hollow_cache"), deps)
except PluginError as error:
    print(error)
"""


def test_missing_factory_is_named_when_it_is_used(sick: CleanEnvironment, folder: Path):
    done = sick.kvcache("hollow", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == (
        "kvcache: error: acme-hollow 1.0 (plugin 'hollow') is broken at stage 'factory': "
        "importing acme_gone:run raised ModuleNotFoundError: No module named 'acme_gone'\n"
    )
    done = sick.python("-c", BUILD, cwd=folder)
    assert done.stdout == (
        "acme-hollow 1.0 (plugin 'hollow') is broken at stage 'factory': importing acme_hollow:make raised "
        "AttributeError: module 'acme_hollow' has no attribute 'make'\n"
    )


# -- not asked for, and broken -------------------------------------------------------------------------------------------------


def test_list_shows_every_broken_plugin_and_exits_0(sick: CleanEnvironment, folder: Path):
    """FAULTS C2, C3."""
    done = sick.kvcache("plugins", "list", "--json", cwd=folder)
    assert done.returncode == 0
    plugins = json.loads(done.stdout)["plugins"]
    assert [p["distribution"] for p in plugins if p["ok"]] == ["acme-good", "acme-hollow", "kvcache-chunk", "kvcache-radix"]
    found = {
        f"{p['distribution']} {p['version']} (plugin '{p['plugin']}')": (p["stage"], p["error"]) for p in plugins if not p["ok"]
    }
    assert found.keys() == BROKEN.keys()
    for whose, (stage, error) in BROKEN.items():
        assert found[whose][0] == stage
        assert found[whose][1].startswith(error)
    text = sick.kvcache("plugins", "list", cwd=folder)
    assert text.returncode == 0
    for stage, error in BROKEN.values():
        assert f"    BROKEN at stage '{stage}': {error}" in text.stdout


def test_everything_else_works(sick: CleanEnvironment, folder: Path):
    """FAULTS C2."""
    done = sick.kvcache("config", "validate", "cache.yaml", cwd=folder)
    assert (done.returncode, done.stdout.startswith("cache.yaml: valid; chunk_cache")) == (0, True)
    done = sick.kvcache("config", "explain", cwd=folder)
    assert (done.returncode, "cache type: radix_cache, from kvcache-radix" in done.stdout) == (0, True)
    done = sick.kvcache("config", "show", "--json", "--hicache-storage", "good", "--set", "hicache.storage.path=/y", cwd=folder)
    assert done.returncode == 0
    assert {"path": "hicache.storage.path", "value": "/y", "origin": "--set hicache.storage.path"} in json.loads(done.stdout)
    done = sick.kvcache("--help", cwd=folder)
    assert (done.returncode, "hollow" in done.stdout) == (0, True)


def test_doctor_exits_1_with_the_details(sick: CleanEnvironment, folder: Path):
    done = sick.kvcache("plugins", "doctor", cwd=folder)
    assert done.returncode == 1
    for whose, (stage, error) in BROKEN.items():
        assert f"{whose} is broken at stage '{stage}': {error}" in done.stdout
    assert "ok     kvcache-radix: cache type radix_cache: " in done.stdout
    assert "ok     acme-good: storage backend good: acme_good:Options" in done.stdout
    assert "BROKEN acme-hollow: cache type hollow_cache: acme_hollow:make" in done.stdout
    assert "BROKEN acme-hollow: command hollow: acme_gone:run" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" checks, 10 broken")
    said = json.loads(sick.kvcache("plugins", "doctor", "--json", cwd=folder).stdout)
    assert (said["ok"], sum(check["error"] is not None for check in said["checks"])) == (False, 10)


def test_doctor_of_a_sound_environment_exits_0(core_alone: CleanEnvironment, folder: Path):
    done = core_alone.kvcache("plugins", "doctor", cwd=folder)
    assert (done.returncode, done.stdout) == (0, "0 checks, 0 broken\n")


def test_strict_plugins_makes_every_broken_one_fatal(sick: CleanEnvironment, core_alone: CleanEnvironment, folder: Path):
    done = sick.kvcache("config", "validate", "cache.yaml", "--strict-plugins", cwd=folder)
    assert done.returncode == 2
    assert done.stdout.startswith("kvcache: error: broken plugins, and --strict-plugins was given:\n")
    assert sorted(line.partition(" is broken")[0].strip() for line in done.stdout.splitlines()[1:]) == sorted(BROKEN)
    assert core_alone.kvcache("--strict-plugins", "plugins", "list", cwd=folder).returncode == 0


# -- metadata that an interrupted uninstall or a stranger left behind (FAULTS C2) -----------------------------------------------


def test_entry_points_without_metadata_belong_to_an_unknown_distribution(tmp_path: Path, folder: Path):
    environment = CleanEnvironment(tmp_path / "site")
    leftover = environment.folder / "acme_left-1.0.dist-info" / "entry_points.txt"
    leftover.parent.mkdir()
    leftover.write_text("[kvcache.v1]\nleft = acme_left\n")
    listed = environment.kvcache("plugins", "list", cwd=folder)
    assert listed.returncode == 0
    assert listed.stdout == (
        "an unknown distribution (plugin 'left', acme_left)\n"
        "    BROKEN at stage 'import': ModuleNotFoundError: No module named 'acme_left'\n"
    )
    done = environment.kvcache("plugins", "doctor", cwd=folder)
    assert (done.returncode, done.stdout.startswith("BROKEN an unknown distribution: discovery\n")) == (1, True)
    done = environment.kvcache("config", "show", "--hicache-storage", "left", cwd=folder)
    assert "an unknown distribution (plugin 'left') is broken at stage 'import'" in done.stdout


@pytest.mark.parametrize("variables", [{}, {"PYDANTIC_DISABLE_PLUGINS": "1"}], ids=["pydantic stumbles", "we stumble"])
def test_an_unreadable_entry_points_file_is_named(
    tmp_path: Path, folder: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    environment = CleanEnvironment(tmp_path / "site")
    environment.write("stranger", "2.0", {}, {"stranger-2.0.dist-info/entry_points.txt": "[console_scripts]\nno equals sign\n"})
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = environment.kvcache("plugins", "list", cwd=folder)
    assert done.returncode == 2
    assert done.stdout.startswith("kvcache: error: entry_points.txt of stranger in ")
    assert done.stdout.endswith(" cannot be read (TypeError); reinstall or remove it\n")
    assert done.stdout.count("\n") == 1
    assert environment.kvcache("--version", cwd=folder).returncode == 0


NOISY = """
from kvcache_core.registry.descriptors import PluginOptions, StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl

print("hello from the import")

@hookimpl
def kvcache_storage_backends():
    print("hello from the hook")
    factory = "acme_noisy_store:open_store"
    return [StorageBackendDescriptor(name="noisy", summary="loud", factory=factory, options=PluginOptions)]
"""


def test_json_stays_json_whatever_plugins_print(tmp_path: Path, folder: Path):
    environment = CleanEnvironment(tmp_path / "site")
    store = "print('hello from the store')\ndef open_store(): ...\n"
    files = {"acme_noisy.py": NOISY, "acme_noisy_store.py": store}
    environment.write("acme-noisy", "1.0", {"noisy": "acme_noisy"}, files)
    for words in (["plugins", "list", "--json"], ["plugins", "doctor", "--json"], ["config", "schema"]):
        # CleanEnvironment shows both streams as one; what goes to standard error is set aside here.
        code = f"import os, sys; from kvcache_core.cli import main; sys.stderr = open(os.devnull, 'w'); sys.exit(main({words!r}))"
        done = environment.python("-c", code, cwd=folder)
        assert done.returncode == 0
        assert json.loads(done.stdout)
    assert "hello from the store" in environment.kvcache("plugins", "doctor", cwd=folder).stdout
