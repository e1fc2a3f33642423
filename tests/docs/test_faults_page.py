"""docs/faults.md names tests and planted faults that are there: files are parsed, nothing is run."""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

COUNTS = {"K": 6, "B": 9, "L": 9, "P": 7, "S": 10, "C": 5, "T": 26}
LISTED = {f"{kind}{n}" for kind, last in COUNTS.items() for n in range(1, last + 1)}
LISTED_BY_COMPONENT = {
    *(f"K{n}" for n in (1, 2, 3, 4, 5)),
    *(f"B{n}" for n in (1, 3, 4, 5, 6, 7, 9)),
    *(f"L{n}" for n in (1, 2, 3, 5, 7, 8, 9)),
    *(f"P{n}" for n in (1, 2, 3, 4, 5, 6)),
    *(f"S{n}" for n in (9, 10)),
    *(f"T{n}" for n in (1, 6, 7, 8, 9, 10, 12, 13, 14, 15, 17, 18, 20, 21, 22, 23, 24, 25, 26)),
}
BY_COMPONENT = "## In windows and states"
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)
FOLDERS = ("tests", "plugins", "engine", "conformance", "examples")

Names = Mapping[str, tuple[set[str], set[str]]]
"""By file name, where only one file has it: functions and classes, and all strings."""


def names_in(source: str) -> tuple[set[str], set[str]]:
    """The functions and classes that a module defines at any depth, and its strings."""
    nodes = list(ast.walk(ast.parse(source)))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return defined, {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def missing_in(page: str, names: Names) -> list[str]:
    """What a page names and the tree does not have, or has without a test or a planted fault."""
    missing: list[str] = []
    for code, _, tests, faults in ROW.findall(page):
        listed = [re.findall(r"`([^`]+)`", cell) for cell in (tests, faults)]
        missing += [f"{code}: {what}" for what, named in zip(("no test", "no planted fault"), listed, strict=True) if not named]
        for name in listed[0]:
            file, _, test = name.partition("::")
            if file not in names or not test.startswith("test_") or test not in names[file][0]:
                missing.append(f"{code}: {name}")
        for name in listed[1]:
            file, _, fault = name.partition("::")
            if file not in names or fault not in names[file][0] | names[file][1]:
                missing.append(f"{code}: {name}")
    return missing


@pytest.fixture(scope="module")
def names(root: Path) -> Names:
    files = [path for folder in FOLDERS for path in (root / folder).rglob("*.py") if ".venv" not in path.parts]
    times = Counter(path.name for path in files)
    return {path.name: names_in(path.read_text(encoding="utf-8")) for path in files if times[path.name] == 1}


def test_every_test_and_every_planted_fault_is_there(root: Path, names: Names):
    page = (root / "docs" / "faults.md").read_text(encoding="utf-8")
    main, _, by_component = page.partition(BY_COMPONENT)
    for part, listed in ((main, LISTED), (by_component, LISTED_BY_COMPONENT)):
        codes = [code for code, *_ in ROW.findall(part)]
        assert len(set(codes)) == len(codes)
        assert set(codes) >= listed
    assert missing_in(page, names) == []


@pytest.mark.parametrize(
    ("row", "missing"),
    [
        ("| X1 | a | `test_a.py::test_one` | `test_a.py::X1: wrong` |", []),
        ("| X1 | a | `test_a.py::test_one`<br>`test_a.py::test_gone` | `test_a.py::f` |", ["X1: test_a.py::test_gone"]),
        ("| X1 | a | `test_b.py::test_one` | `test_a.py::f` |", ["X1: test_b.py::test_one"]),
        ("| X1 | a | `test_a.py::f` | `test_a.py::f` |", ["X1: test_a.py::f"]),
        ("| X1 | a | `test_a.py::test_one` | `test_a.py::g` |", ["X1: test_a.py::g"]),
        ("| X1 | a | `test_a.py::test_one` |  |", ["X1: no planted fault"]),
    ],
)
def test_a_name_that_is_not_there_is_seen(row: str, missing: list[str]):
    names = {"test_a.py": names_in('def test_one(): ...\ndef f(): ...\nfaults = (("X1: wrong", f),)')}
    assert missing_in(row, names) == missing
