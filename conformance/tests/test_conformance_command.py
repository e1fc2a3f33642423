"""`kvcache conformance storage`: verdicts on backends that are good, wrong, hanging, crashing and shut, from installed plugins.

In an environment that has the core, the kit and strangers' plugins only: no jax, no cache type.
"""

import json
import textwrap

import pytest

from kvcache_conformance.clean_environment import CleanEnvironment
from kvcache_core.cli import main

PLUGIN = """
from kvcache_core.registry.descriptors import PluginOptions, StorageBackendDescriptor
from kvcache_core.registry.hookspecs import hookimpl

class Options(PluginOptions):
    path: str
    level: int = 1
    max_bytes: int | None = None

@hookimpl
def kvcache_storage_backends():
    return [
        StorageBackendDescriptor(
            name=name, summary="for a test", factory=f"acme.stores:{name}", options=Options, capabilities=frozenset(declared),
            flags=(("path", "--hicache-storage-path"),),
        )
        for name, *declared in [
            ("good", "persistent", "shared"), ("wrong", "scan"), ("hanging",), ("crashing",), ("shut",), ("limited", "capacity"),
            ("private", "persistent", "shared"),
        ]
    ]
"""
STORES = '''
import os
import shelve
import threading
from pathlib import Path

from kvcache_core.contracts.storage import HiCacheStorage

class Files(HiCacheStorage):
    """Pages as files; model ids in hex, and two page sizes share a folder."""

    def __init__(self, options, scope):
        self.folder = Path(options.path) / scope.model_id.encode().hex()[:200]
        self.read_only = scope.read_only
        if not self.read_only:
            self.folder.mkdir(parents=True, exist_ok=True)
        elif not self.folder.exists():
            raise FileNotFoundError(str(self.folder))

    def writable(self):
        if self.read_only:
            raise PermissionError("read only")

    def exists(self, keys):
        return [(self.folder / key).exists() for key in keys]

    def get(self, keys):
        return [self.read(self.folder / key) for key in keys]

    def read(self, file):
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None

    def set(self, keys, values):
        self.writable()
        for key, value in zip(keys, values, strict=True):
            new = self.folder / f"{key}.{os.getpid()}.{threading.get_ident()}"
            new.write_bytes(value)
            new.replace(self.folder / key)

    def delete(self, keys):
        self.writable()
        for key in keys:
            (self.folder / key).unlink(missing_ok=True)

good = limited = Files

class wrong(Files):
    def get(self, keys):
        return super().get(sorted(keys))

class hanging(Files):
    def set(self, keys, values):
        threading.Event().wait()

class crashing(Files):
    def set(self, keys, values):
        os._exit(7)

class private(Files):
    def __init__(self, options, scope):
        super().__init__(options, scope)
        self.folder = self.folder / str(os.getpid())
        self.folder.mkdir(exist_ok=True)

def shut(options, scope):
    raise PermissionError("the key does not fit")
'''


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    made = CleanEnvironment(tmp_path_factory.mktemp("command") / "site")
    made.link("kvcache-conformance")
    files = {"acme/__init__.py": "", "acme/plugin.py": textwrap.dedent(PLUGIN), "acme/stores.py": STORES}
    made.write("acme-stores", "2.5", {"stores": "acme.plugin"}, files)
    return made


@pytest.fixture
def conformance(environment, tmp_path):
    def run(*words):
        done = environment.kvcache("conformance", "storage", *words, cwd=tmp_path)
        assert list(tmp_path.iterdir()) == [], "something was left in the user's folder"
        return done.returncode, done.stdout

    return run


def test_a_good_backend_conforms(conformance):
    status, said = conformance("good")
    lines = said.splitlines()
    assert lines[0] == "storage backend good of acme-stores 2.5"
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["basic", "passed"],
        ["threads", "passed"],
        ["machine", "passed"],
        ["opening", "passed"],
        ["persistent", "passed"],
        ["shared", "passed"],
        ["scan", "skipped"],
        ["capacity", "skipped"],
        ["buffers", "skipped"],
        ["raw", "skipped"],
    ]
    assert "  scan        skipped  the backend does not declare the capability 'scan'" in lines
    assert "skipped" not in "".join(lines[1:7])
    assert (status, lines[-1]) == (0, "it conforms")


def test_a_wrong_backend_does_not(conformance):
    status, said = conformance("wrong", "--json", "--parts", "basic", "scan", "raw")
    verdict = json.loads(said)
    assert (status, verdict["ok"]) == (1, False)
    assert (verdict["storage"], verdict["provider"], verdict["capabilities"]) == ("wrong", "acme-stores 2.5", ["scan"])
    failed = {test["test"]: test for part in verdict["parts"] for test in part["tests"] if test["outcome"] == "failed"}
    assert "test_answers_stand_in_the_order_of_the_keys" in failed
    assert "test_what_scan_names_can_be_deleted_meanwhile" in failed
    test = failed["test_answers_stand_in_the_order_of_the_keys"]
    assert test["text"].startswith("get gave ")
    assert "storage_basic_tests.py" in test["traceback"]
    outcomes = {part["part"]: part["outcome"] for part in verdict["parts"]}
    assert outcomes == {"basic": "failed", "scan": "failed", "raw": "skipped"}


@pytest.mark.parametrize(
    ("name", "said"), [("hanging", "it did not end within 8 s"), ("crashing", "it ended the process, with status 7")]
)
def test_a_backend_that_never_answers_is_named(conformance, name, said):
    status, shown = conformance(name, "--timeout", "8")
    lines = shown.splitlines()
    assert status == 1
    assert lines[1].startswith("  basic       FAILED   1 of ")
    assert lines[2] == f"      test_a_page_comes_back_as_it_was_set: {said}"
    assert lines[3] == "  threads     not run  3 tests"
    assert lines[-1].startswith("it does NOT conform: ")


@pytest.mark.parametrize(
    ("text", "said"), [("soon", "a number of seconds, not 'soon'"), ("0", "between 0 and a day"), ("nan", "between 0 and a day")]
)
def test_a_timeout_that_is_none_is_refused_in_words(capsys, text, said):
    with pytest.raises(SystemExit) as caught:
        main(["conformance", "storage", "file", "--timeout", text])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"argument --timeout: must be {said}" in last
    assert "_" not in last


def test_a_backend_that_cannot_be_opened_is_told_once(conformance):
    status, shown = conformance("shut")
    lines = shown.splitlines()
    assert status == 1
    assert lines[2] == "      test_it_opens_and_may_be_closed_twice: PermissionError: the key does not fit"
    assert shown.count("the key does not fit") == 1


def test_a_limit_is_not_tried_on_a_store_of_the_users(conformance, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mine")
    status, shown = conformance("limited", "--parts", "capacity", "threads", "--options", f"path={folder}")
    (line,) = [line for line in shown.splitlines() if line.startswith("  capacity")]
    assert status == 0
    assert line.startswith("  capacity    skipped  the options name a store of their own, and a limit would evict")
    status, shown = conformance("limited", "--options", "path={place}/deep", "--parts", "capacity")
    assert status == 1
    assert "test_three_times_the_limit_leaves_the_newest: 180224 bytes are kept, the limit is 163840" in shown


def test_a_backend_that_keeps_processes_apart_is_noticed(conformance):
    """Inside one process it does all that it declares."""
    status, said = conformance("private", "--parts", "persistent", "shared", "--json")
    failed = [test["test"] for part in json.loads(said)["parts"] for test in part["tests"] if test["outcome"] == "failed"]
    assert (status, failed) == (1, ["test_pages_of_another_process_are_there", "test_processes_that_write_the_same_keys_at_once"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["god"], "no installed plugin provides storage backend 'god'; installed: crashing, good,"),
        (["redis"], "storage backend 'redis' is not installed; install it with: pip install kvcache-storage-redis"),
        (["good", "--options", "levl=2"], "--options levl: hicache.storage.levl: unknown key (did you mean 'level'?)"),
        (["good", "--options", "level=high"], "--options level: hicache.storage.level: must be a valid integer"),
        (["good", "--options", "level"], "kvcache: error: --options takes KEY=VALUE, not 'level'"),
        (["good", "--options", "kind=wrong"], "kvcache: error: --options cannot set 'kind': it is 'good', as named"),
        (["good", "--options", "level=[1"], "--options level: '[1' is not valid YAML"),
    ],
)
def test_what_cannot_be_tried_is_refused(conformance, words, said):
    status, shown = conformance(*words)
    assert (status, shown.startswith("Traceback")) == (2, False)
    assert said in shown


def test_help_needs_neither_pytest_nor_the_kit(environment, tmp_path):
    code = """
import sys
from kvcache_core.cli import main
try:
    main(["conformance", "storage", "--help"])
finally:
    print(sorted({"pytest", "hypothesis", "numpy", "multiprocessing"} & sys.modules.keys()))
"""
    assert environment.python("-c", code, cwd=tmp_path).stdout.splitlines()[-1] == "[]"
