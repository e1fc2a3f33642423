"""What must not be in any tracked file: names of one machine, of one package index, and attribute guessing."""

import re
import subprocess
from pathlib import Path

import pytest

# Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:root|work|home|tmp|Users)/[\w.]")
HOSTS = "|".join(("py" + "pi", "python" + "hosted", "npm" + "js", "registry"))  # in pieces: this file names none of them
PACKAGE_INDEX = re.compile(rf"(?:index|find)[-_](?:url|links)\b|https?://[^\s/]*(?:{HOSTS})\b|/simple/", re.IGNORECASE)
GUESSING = re.compile(r"\bhasattr[(]")


@pytest.fixture(scope="module")
def tracked(root: Path) -> dict[str, str]:
    """Text of every tracked file that is text, by path."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True).stdout
    texts = {}
    for name in filter(None, listing.split("\0")):
        try:
            texts[name] = (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # binary, or deleted and not yet committed
    return texts


@pytest.mark.parametrize(
    ("pattern", "suffix"),
    [(MACHINE_PATH, ""), (PACKAGE_INDEX, ""), (GUESSING, ".py")],
    ids=["machine-path", "package-index", "hasattr"],
)
def test_no_tracked_file_holds_it(tracked, pattern, suffix):
    assert "pyproject.toml" in tracked
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked.items()
        if name.endswith(suffix) and name != "tests/packaging/test_tracked_files.py"
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATH, 'open("/home/x/a")'),
        (PACKAGE_INDEX, "--index-url x"),
        (PACKAGE_INDEX, "https://my.registry/x"),
        (PACKAGE_INDEX, "https://mirror.example/simple/"),
        (GUESSING, "hasattr(a, b)"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern, line):
    assert pattern.search(line)
