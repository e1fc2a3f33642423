"""The documentation's folder, and the modules of its generator, which belong to no distribution."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return Path(__file__).parents[2]


@pytest.fixture
def generator(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """`generator("hooks")`: the module that writes docs/reference/hooks.md."""
    monkeypatch.syspath_prepend(str(root / "docs"))
    return lambda name: importlib.import_module(f"reference_pages.{name}")
