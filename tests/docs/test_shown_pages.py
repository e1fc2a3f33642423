"""The hand-written pages show what happens: their files are written and their commands run, as a reader would do it."""

from pathlib import Path

import pytest

from kvcache_conformance.clean_environment import CleanEnvironment
from kvcache_conformance.shown_session import ShownSession, ShownWrongError, blocks_in, commands_in
from kvcache_core.cli import main


@pytest.fixture
def session(tmp_path: Path) -> ShownSession:
    (tmp_path / "start").mkdir()
    return ShownSession(CleanEnvironment(tmp_path / "site"), tmp_path / "start")


@pytest.mark.parametrize(("page", "least"), [("plugins.md", 20), ("configuration.md", 15)])
def test_page_shows_what_happens(session: ShownSession, root: Path, page: str, least: int):
    session.follow((root / "docs" / page).read_text(encoding="utf-8"))
    assert session.commands >= least


def test_the_example_of_a_storage_plugin_does_what_its_page_shows(session: ShownSession, root: Path):
    """The page shows the package's files as they are; the reader starts in a copy of it."""
    example, page = root / "examples" / "third_party_storage", (root / "docs" / "storage_plugins.md").read_text(encoding="utf-8")
    shown = {block.file: block.text for block in blocks_in(page) if block.file is not None}
    assert {file: (example / file).read_text(encoding="utf-8") for file in shown if file != "cache.yaml"} == {
        file: text for file, text in shown.items() if file != "cache.yaml"
    }
    (session.folder / "README.md").write_text((example / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    session.follow(page)
    assert session.commands >= 10
    of_the_package = {path.relative_to(example).as_posix() for path in example.rglob("*") if path.suffix in (".py", ".toml")}
    assert of_the_package == shown.keys() - {"cache.yaml"}


def test_the_storage_plugin_is_as_short_as_we_say(root: Path):
    package = root / "examples" / "third_party_storage" / "src" / "kvcache_storage_sqlite"
    assert len((package / "store.py").read_text(encoding="utf-8").splitlines()) < 60


@pytest.mark.parametrize("page", ["plugins.md", "configuration.md", "storage_plugins.md"])
def test_what_is_not_tried_is_only_publishing(root: Path, page: str):
    blocks = list(blocks_in((root / "docs" / page).read_text(encoding="utf-8")))
    assert {block.language for block in blocks} <= {"console", "python", "toml", "yaml", "sh"}
    untried = [line for block in blocks if block.file is None and block.language != "console" for line in block.text.splitlines()]
    publishing = ["python -m pip install build twine", "python -m build", "python -m twine upload dist/*"]
    assert untried == (publishing if page == "plugins.md" else [])


def test_the_published_package_names_its_entry_point_after_its_backend(session: ShownSession, root: Path):
    """The page's advice, followed by its own example: with the module gone, the name is still known to be the plugin's."""
    blocks = list(blocks_in((root / "docs" / "plugins.md").read_text(encoding="utf-8")))
    (pyproject,) = [block.text for block in blocks if block.file == "pyproject.toml"]
    assert 'shelves = "acme_shelves.plugin"' in pyproject
    session.environment.write("acme-shelves", "1.0", {"shelves": "acme_shelves.plugin"}, {})
    said = session.run("kvcache config show --hicache-storage shelves")
    assert "storage backend 'shelves': acme-shelves 1.0 (plugin 'shelves') is broken at stage 'import'" in said


def test_every_example_is_valid_and_described(root: Path, capsys: pytest.CaptureFixture[str]):
    described = (root / "docs" / "configuration.md").read_text(encoding="utf-8")
    examples = sorted((root / "examples").rglob("*.yaml"))
    assert examples
    for example in examples:
        assert main(["config", "validate", str(example)]) == 0, capsys.readouterr().err
        assert f"`{example.relative_to(root).as_posix()}`" in described


PAGE = """
**`a/b.txt`**

```text
hello
```

```console
$ cat a/b.txt
hello
$ kvcache --version
kvcache ...
$ echo $?
0
```
"""


def test_blocks_and_commands_are_read():
    first, second = blocks_in(PAGE)
    assert (first.file, first.text, first.line) == ("a/b.txt", "hello\n", 5)
    assert (second.file, second.language) == (None, "console")
    assert [(shown.command, shown.output, shown.line) for shown in commands_in(second)] == [
        ("cat a/b.txt", "hello\n", 9),
        ("kvcache --version", "kvcache ...\n", 11),
        ("echo $?", "0\n", 13),
    ]


def test_a_true_page_passes(session: ShownSession):
    session.follow(PAGE)
    assert session.commands == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hello\n$", "goodbye\n$", "line 9: `cat a/b.txt` prints something else"),
        ("hello\n$", "$", "line 9: `cat a/b.txt` prints something else"),
        ("0\n", "2\n", r"line 13: `echo \$\?` prints something else"),
        ("$ cat", "$ curl", "nobody knows how to try the command 'curl a/b.txt'"),
    ],
)
def test_an_untrue_page_fails(session: ShownSession, old: str, new: str, said: str):
    with pytest.raises(ShownWrongError, match=said):
        session.follow(PAGE.replace(old, new, 1))
