"""`kvcache` as a user runs it: in a process of its own, with the packages that are installed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvcache_core

Run = Callable[..., subprocess.CompletedProcess[str]]
START = [sys.executable, "-m", "kvcache_core"]

PLUGIN = """
import sys
from kvcache_core.registry.descriptors import CommandDescriptor
from kvcache_core.registry.hookspecs import hookimpl

@hookimpl
def kvcache_commands():
    def make(name):
        target = f"acme_commands:{name}"
        return CommandDescriptor(name=name, summary=f"{name} it", configure="acme_commands:configure", run=target)
    return [make("greet"), make("wait"), make("fail"), make("vanish"), make("obey")]
"""
COMMANDS = """
import sys, time
from kvcache_core.errors import KVCacheError
from kvcache_core.interrupted import Interrupted

def configure(parser):
    parser.add_argument("--name", default="world")

def greet(args):
    print(f"hello {args.name}")
    return 7

def wait(args):
    print("waiting", flush=True)
    while True:
        time.sleep(0.05)

def fail(args):
    raise KVCacheError("this cannot work; do that")

def obey(args):
    raise Interrupted(143)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder on the path with one foreign distribution that is whole and one that is broken."""
    folder = tmp_path / "site"
    for name, module, body in [("acme-commands", "acme_plugin", PLUGIN), ("acme-broken", "acme_broken", "import not_there")]:
        info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[kvcache.v1]\n{name} = {module}\n")
        (folder / f"{module}.py").write_text(body)
    (folder / "acme_commands.py").write_text(COMMANDS)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(*words: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ) | ({"PYTHONPATH": str(site)} if site else {}) | {"COLUMNS": "100"}
        return subprocess.run(
            [*START, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return start


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cache.yaml"
    path.write_text("cache_type: chunk_cache\npage_size: 8\n")
    return path


def test_version_and_help(run: Run):
    assert run("--version").stdout == f"kvcache {kvcache_core.__version__}\n"
    text = run("--help").stdout
    for expected in ("config", "plugins", "examples:", "--strict-plugins"):
        assert expected in text
    assert run().stdout == text
    for command in (["config", "validate"], ["config", "explain"], ["plugins", "list"], ["plugins", "doctor"]):
        assert "examples:" in run(*command, "--help").stdout


def test_validate(run: Run, config: Path):
    done = run("config", "validate", "cache.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cache.yaml: valid; chunk_cache for a model of class full_attention (assumed")


def test_validate_shows_every_problem_and_exits_2(run: Run, config: Path):
    """FAULTS C1."""
    config.write_text("page_siz: 8\ncache_type: [1]\n")
    done = run("config", "validate", "cache.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "cache.yaml:1:1: page_siz: unknown key (did you mean 'page_size'?)\n    1 | page_siz: 8\n      | ^^^^^^^^\n"
        "cache.yaml:2:13: cache_type: must be a valid string, not [1]\n    2 | cache_type: [1]\n      |             ^\n"
    )
    as_json = run("config", "validate", "cache.yaml", "--json")
    said = json.loads(as_json.stdout)
    assert (as_json.returncode, said["valid"]) == (2, False)
    assert [(p["path"], p["place"]["line"], p["place"]["column"], p["suggestion"]) for p in said["problems"]] == [
        ("page_siz", 1, 1, "page_size"),
        ("cache_type", 2, 13, None),
    ]


def test_missing_file(run: Run):
    """FAULTS C1."""
    done = run("config", "validate", "nowhere.yaml")
    assert (done.returncode, done.stderr) == (2, "nowhere.yaml: no such file\n")


def test_a_combination_that_cannot_work_is_located_too(run: Run, config: Path):
    """FAULTS C4."""
    config.write_text("page_size: 8\ncache_type: chunk_cache\nhicache: {}\n")
    done = run("config", "validate", "cache.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("cache.yaml:2:13: cache_type: cache type 'chunk_cache' has no tiers")


def test_validate_takes_flags_alone(run: Run):
    done = run("config", "validate", "--cache-type", "chunk_cache")
    assert (done.returncode, done.stdout.startswith("defaults and flags: valid; chunk_cache for a model")) == (0, True)


@pytest.mark.parametrize("command", ["validate", "explain", "show", "resolve"])
def test_with_json_problems_are_json_as_well(run: Run, config: Path, command: str):
    """FAULTS C1."""
    config.write_text("page_siz: 8\ncache_type: [1]\n")
    done = run("config", command, "cache.yaml", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, done.stderr, said["valid"]) == (2, "", False)
    assert [problem["path"] for problem in said["problems"]] == ["page_siz", "cache_type"]


def test_with_json_a_combination_that_cannot_work_is_json_with_its_place(run: Run, config: Path):
    """FAULTS C4."""
    config.write_text("cache_type: chunk_cache\nhicache: {}\n")
    for command in ("explain", "resolve"):
        done = run("config", command, "cache.yaml", "--json")
        (problem,) = json.loads(done.stdout)["problems"]
        assert (done.returncode, problem["path"], problem["place"]["line"]) == (2, "cache_type", 1)


def test_explain(run: Run, config: Path):
    done = run("config", "explain", "cache.yaml", "--model-class", "swa")
    assert done.returncode == 0
    assert "model class: swa (model_class, --model-class)" in done.stdout
    assert "  1. chunk_cache: taken: cache_type names it" in done.stdout
    assert f"cache type: chunk_cache, from kvcache-chunk {kvcache_core.__version__}" in done.stdout
    said = json.loads(run("config", "explain", "cache.yaml", "--json").stdout)
    assert (said["cache_type"], said["model_class_assumed"]) == ("chunk_cache", True)
    assert said["steps"] == [{"subject": "chunk_cache", "outcome": "taken", "reason": "cache_type names it"}]


def test_show_names_the_origin_of_every_value(run: Run, config: Path):
    said = json.loads(run("config", "show", "cache.yaml", "--json", "--hicache-ratio", "3").stdout)
    origins = {row["path"]: (row["value"], row["origin"]) for row in said}
    assert origins["page_size"] == (8, "cache.yaml:2:12")
    assert origins["hicache.ratio"] == (3.0, "--hicache-ratio")
    assert origins["hicache.async_impl"] == ("future", "default")
    assert "page_size            8              cache.yaml:2:12" in run("config", "show", "cache.yaml").stdout


def test_resolve_gives_a_file_that_says_the_same(run: Run, config: Path, tmp_path: Path):
    done = run("config", "resolve", "cache.yaml")
    assert yaml.safe_load(done.stdout) == {
        "cache_type": "chunk_cache",
        "disaggregation_mode": "null",
        "page_size": 8,
        "model_class": "full_attention",
    }
    (tmp_path / "resolved.yaml").write_text(done.stdout)
    again = run("config", "resolve", "resolved.yaml", "--json")
    assert json.loads(again.stdout) == yaml.safe_load(done.stdout)


def test_schema_is_json(run: Run):
    schema: dict[str, Any] = json.loads(run("config", "schema").stdout)
    assert schema["additionalProperties"] is False
    assert {"cache_type", "hicache", "page_size"} <= set(schema["properties"])


def test_plugins_list_shows_whole_and_broken(run: Run, site: Path):
    done = run("plugins", "list", site=site)
    assert done.returncode == 0
    assert "    cache type chunk_cache: " in done.stdout
    assert "acme-broken 1.2 (plugin 'acme-broken', acme_broken)\n    BROKEN at stage 'import': ModuleNotFoundError" in done.stdout
    plugins = {
        plugin["distribution"]: plugin for plugin in json.loads(run("plugins", "list", "--json", site=site).stdout)["plugins"]
    }
    assert plugins["kvcache-chunk"]["provides"][0]["name"] == "chunk_cache"
    assert (plugins["acme-broken"]["ok"], plugins["acme-broken"]["stage"]) == (False, "import")


def test_doctor_imports_what_plugins_name(run: Run, site: Path):
    done = run("plugins", "doctor", "--json", site=site)
    said = json.loads(done.stdout)
    assert (done.returncode, said["ok"]) == (1, False)
    sick = {check["what"] for check in said["checks"] if check["error"] is not None}
    assert sick == {"discovery", "command vanish: acme_commands:vanish"}


def test_a_broken_plugin_harms_nothing_unless_strict(run: Run, config: Path, site: Path):
    """FAULTS C2."""
    assert run("config", "validate", "cache.yaml", site=site).returncode == 0
    for words in (
        ["--strict-plugins", "config", "validate", "cache.yaml"],
        ["config", "validate", "cache.yaml", "--strict-plugins"],
    ):
        done = run(*words, site=site)
        assert done.returncode == 2
        assert "acme-broken 1.2 (plugin 'acme-broken') is broken at stage 'import'" in done.stderr


def test_commands_of_other_packages(run: Run, site: Path):
    assert "greet it" in run("--help", site=site).stdout
    done = run("greet", "--name", "cache", site=site)
    assert (done.returncode, done.stdout) == (7, "hello cache\n")
    assert "--name" in run("greet", "--help", site=site).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fail"], "kvcache: error: this cannot work; do that\n"),
        (["vanish"], "kvcache: error: acme-commands 1.2 (plugin 'acme-commands') is broken at stage 'factory'"),
        (["conformence"], "kvcache: error: no command 'conformence'"),
        (["confg"], "kvcache: error: no command 'confg' (did you mean 'config'?)"),
        (["config", "valdate"], "kvcache: error: no command 'config valdate' (did you mean 'validate'?)"),
        (["config", "frobnicate"], "kvcache: error: no command 'config frobnicate' (commands: validate, explain, show"),
        (["plugins", "lst"], "kvcache: error: no command 'plugins lst' (did you mean 'list'?)"),
        (["plugins", "list", "--jso"], "kvcache: error: 'kvcache plugins list' has no option '--jso' (did you mean '--json'?)"),
        (
            ["config", "validate", "--hicache-ratoi=3"],
            "kvcache: error: 'kvcache config validate' has no option '--hicache-ratoi' (did you mean '--hicache-ratio'?)",
        ),
        (["config", "show", "a.yaml", "b.yaml"], "kvcache: error: 'kvcache config show' does not take 'b.yaml' (`kvcache config"),
        (["--frobnicate"], "kvcache: error: 'kvcache' has no option '--frobnicate' (`kvcache --help` shows them)"),
        (["greet", "--frobnicate"], "kvcache: error: 'kvcache greet' has no option '--frobnicate' (`kvcache greet --help`"),
    ],
)
def test_what_cannot_be_run_exits_2_without_a_traceback(run: Run, site: Path, words: list[str], said: str):
    done = run(*words, site=site)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_ctrl_c_exits_130_without_a_traceback(site: Path, tmp_path: Path):
    environment = dict(os.environ) | {"PYTHONPATH": str(site)}
    with subprocess.Popen(
        [*START, "wait"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read() == "kvcache: interrupted\n"


def test_a_command_that_obeys_a_signal_names_the_status(run: Run, site: Path):
    done = run("obey", site=site)
    assert (done.returncode, done.stderr) == (143, "kvcache: interrupted\n")


def test_reader_that_goes_away_is_no_traceback(tmp_path: Path):
    with subprocess.Popen(
        [*START, "config", "schema"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.wait(timeout=60)
        assert "Traceback" not in process.stderr.read()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full exists on Linux only")
@pytest.mark.parametrize("words", [["--version"], ["plugins", "list"], ["config", "schema"]], ids=" ".join)
def test_a_full_disk_is_no_traceback(words: list[str], tmp_path: Path):
    """`--version` is written at once, `plugins list` when the command is done, and the schema is longer than the buffer."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*START, *words], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    said = "kvcache: error: the output cannot be written: No space left on device; make room, or write it elsewhere\n"
    assert (done.returncode, done.stderr) == (2, said)
