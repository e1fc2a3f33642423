"""docs/reference is what the code says now, and what users see has a description. Each check is seen to fail on a planted gap."""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from kvcache_core.config.flags import add_cache_flags
from kvcache_core.registry.checks import EXPECTED

Generator = Callable[[str], Any]
PAGES = ["commands.md", "configuration.md", "counters.md", "errors.md", "hooks.md"]


def check(root: Path, folder: Path) -> tuple[int, str]:
    command = [sys.executable, str(root / "docs" / "generate.py"), "--check", "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_no_page_is_stale(root: Path):
    assert sorted(path.name for path in (root / "docs" / "reference").iterdir()) == PAGES
    assert check(root, root / "docs" / "reference") == (0, "")


def test_stale_and_missing_pages_are_named(root: Path, tmp_path: Path):
    folder = tmp_path / "reference"
    shutil.copytree(root / "docs" / "reference", folder)
    (folder / "errors.md").unlink()
    hooks = (folder / "hooks.md").read_text(encoding="utf-8")
    (folder / "hooks.md").write_text(hooks.replace("Offer values", "Offer some values", 1), encoding="utf-8")
    said = "errors.md is stale: run `make docs`\nhooks.md is stale: run `make docs`\n"
    assert check(root, folder) == (1, said)
    assert "Offer some values" in (folder / "hooks.md").read_text(encoding="utf-8")


def test_every_hook_and_every_flag_is_on_its_page(root: Path):
    reference = root / "docs" / "reference"
    headings = re.findall(r"^### (kvcache_\w+)$", (reference / "hooks.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(EXPECTED)
    parser = argparse.ArgumentParser()
    add_cache_flags(parser)
    configuration = (reference / "configuration.md").read_text(encoding="utf-8")
    flags = re.findall(r"^  (--hicache-\w[\w-]*|--cache-type)", parser.format_help(), re.MULTILINE)
    assert len(flags) >= 8
    assert [flag for flag in flags if f"`{flag}`" not in configuration] == []


SPECS = '''
class HookSpecs:
    @hookspec
    def kvcache_things(self) -> list[ThingDescriptor]:
        """TEXT"""
'''
DESCRIPTOR = '''
class ThingDescriptor:
    """A thing."""

    name: str
    """Its name."""
    size: int = 3
    TEXT
'''
OBSERVER = 'class Observer:\n    """Watches."""\n'


@pytest.mark.parametrize(
    ("hook", "field", "missing"),
    [
        ("Offer things.\n\n        Example::\n\n            pass", '"""How big."""', None),
        ("", '"""How big."""', "hook kvcache_things has no description"),
        ("Offer things.", '"""How big."""', "hook kvcache_things has no example"),
        ("Offer things.\n\n        Example::\n", '"""How big."""', "hook kvcache_things has no example"),
        ("Offer things.\n\n        Example::\n\n            pass", "", "ThingDescriptor.size has no description"),
    ],
)
def test_hook_or_descriptor_field_without_text(generator: Generator, hook: str, field: str, missing: str | None):
    source, hooks = generator("source"), generator("hooks")
    (specs,) = source.classes_in(SPECS.replace("TEXT", hook)).values()
    (descriptor,) = source.classes_in(DESCRIPTOR.replace("TEXT", field)).values()
    (observer,) = source.classes_in(OBSERVER).values()
    if missing is None:
        page = hooks.render(specs, [descriptor], observer)
        assert "`kvcache_things() -> list[ThingDescriptor]`" in page
        assert "| `size` | `int` | `3` | How big. |" in page
        return
    with pytest.raises(source.UndocumentedError, match=missing):
        hooks.render(specs, [descriptor], observer)


def test_event_without_text(generator: Generator):
    source, hooks = generator("source"), generator("hooks")
    (specs,) = source.classes_in("class HookSpecs:\n    pass").values()
    (observer,) = source.classes_in(OBSERVER + "    def page_lost(self, key: str) -> None: ...\n").values()
    with pytest.raises(source.UndocumentedError, match=r"Observer\.page_lost has no description"):
        hooks.render(specs, [], observer)


def test_counter_without_text(generator: Generator):
    source, counters = generator("source"), generator("counters")
    good = 'class Counters:\n    """All."""\n    hits: int = 0\n    """Good ones."""\n'
    assert "| `hits` | `int` | Good ones. |" in counters.render(list(source.classes_in(good).values()))
    with pytest.raises(source.UndocumentedError, match=r"Counters\.misses has no description"):
        counters.render(list(source.classes_in(good + "    misses: int = 0\n").values()))


def test_reason_without_text(generator: Generator):
    source, counters = generator("source"), generator("counters")
    good = 'class Words:\n    """All."""\n    GONE: Final = "page gone"\n    """It was."""\n'
    [words] = source.classes_in(good).values()
    assert "| `page gone` | It was. |" in counters.render([], words)
    [words] = source.classes_in(good + '    LATE: Final = "late"\n').values()
    with pytest.raises(source.UndocumentedError, match=r"Words\.LATE has no description"):
        counters.render([], words)


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("class Sad(KVCacheError):\n    pass", r"far\.errors\.Sad has no description"),
        ('class Sad(KVCacheError):\n    """Wrong."""', r"far\.errors\.Sad does not say what to do"),
        ('class Sad(ValueError):\n    """Wrong."""', r"far\.errors\.Sad does not say what to do"),
        ('class _Sad(ValueError):\n    """Nobody outside sees it."""', None),
        ('class Happy(tuple):\n    """No error."""', None),
        ('class Sad(KVCacheError):\n    """Wrong.\n\n    What to do: smile.\n    """', None),
    ],
)
def test_error_without_text_or_advice(generator: Generator, module: str, missing: str | None):
    source, errors = generator("source"), generator("errors")
    base = 'class KVCacheError(Exception):\n    """Base.\n\n    What to do: read.\n    """'
    packages = {"core": {"core.errors": base}, "far": {"far.errors": module}}
    if missing is None:
        assert ("### Sad" in errors.render(packages)) == ("class Sad" in module)
        return
    with pytest.raises(source.UndocumentedError, match=missing):
        errors.render(packages)


def test_field_without_text(generator: Generator):
    class Options(BaseModel):
        path: str = Field(description="where")
        size: int | None = Field(default=None, ge=1)

    source, configuration = generator("source"), generator("configuration")
    with pytest.raises(source.UndocumentedError, match=r"Options\.size has no description"):
        configuration.model_table(Options, (), {})


def test_a_field_is_shown_with_type_bounds_default_and_flag(generator: Generator):
    class Options(BaseModel):
        mode: str | None = Field(default="a|b", description="how")
        size: int = Field(ge=1, le=9, description="how\nbig")

    table = generator("configuration").model_table(Options, ("mine",), {("mine", "size"): "--size"})
    assert table.splitlines()[2:] == [
        '| `mode` | text | `"a\\|b"` |  | how |',
        "| `size` | integer, >= 1, <= 9 | required | `--size` | how big |",
    ]


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [(["--size"], "kvcache x --size SIZE has no description"), (["path"], "kvcache x PATH has no description")],
)
def test_argument_without_text(generator: Generator, arguments: list[str], missing: str):
    source, commands = generator("source"), generator("commands")
    parser = argparse.ArgumentParser(prog="kvcache x", description="A command.")
    assert commands.command_section(parser) == "## kvcache x\n\nA command."
    parser.add_argument(*arguments)
    with pytest.raises(source.UndocumentedError, match=missing):
        commands.command_section(parser)


def test_command_without_text(generator: Generator):
    source, commands = generator("source"), generator("commands")
    with pytest.raises(source.UndocumentedError, match="kvcache x has no description"):
        commands.command_section(argparse.ArgumentParser(prog="kvcache x"))
