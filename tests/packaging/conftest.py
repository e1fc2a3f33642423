"""The workspace's distributions as their pyproject.toml files describe them; a test with a `member` argument runs for each."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Member:
    """One distribution: its folder, its import package's folder and its parsed pyproject.toml."""

    folder: Path
    package: Path
    pyproject: dict[str, Any]

    @property
    def name(self) -> str:
        return self.pyproject["project"]["name"]


def read_member(folder: Path) -> Member:
    pyproject = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    (package,) = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return Member(folder, folder / package, pyproject)


def read_workspace() -> list[Member]:
    root = read_member(ROOT)
    folders = [
        folder for pattern in root.pyproject["tool"]["uv"]["workspace"]["members"] for folder in sorted(ROOT.glob(pattern))
    ]
    return [root, *(read_member(folder) for folder in folders)]


WORKSPACE = read_workspace()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "member" in metafunc.fixturenames:
        metafunc.parametrize("member", WORKSPACE, ids=lambda member: member.name)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def root_pyproject() -> dict[str, Any]:
    """pyproject.toml of the workspace's root, which is also the core's."""
    return WORKSPACE[0].pyproject


@pytest.fixture(scope="session")
def members() -> list[Member]:
    """Every distribution of the workspace."""
    return WORKSPACE
