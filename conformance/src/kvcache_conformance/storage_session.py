"""The process in which `kvcache conformance storage` runs pytest, and what it tells the process that waits. It judges nothing."""

import os
from collections.abc import Collection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from kvcache_conformance.storage_verdict import Outcome


class Planned(NamedTuple):
    """A test that will run. `node` is its name for pytest."""

    node: str
    part: str
    test: str


class Started(NamedTuple):
    """A test runs now."""

    node: str


class Ended(NamedTuple):
    """A test has ended."""

    node: str
    outcome: Outcome
    text: str
    traceback: str


Message = Planned | Started | Ended | None
"""None: pytest has ended."""


def run_pytest(there: Connection, parts: Collection[str], folder: Path) -> None:
    """Run these parts of the tests in `folder` and send messages; what pytest prints goes to a file there."""
    os.setsid()  # one group with the processes that tests start, so that all of them can be ended
    log = os.open(folder / "pytest.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Nothing of the user's pytest: neither plugins nor options nor configuration.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    import pytest

    from kvcache_conformance.storage_reporter import StorageReporter

    words = ["-q", "-c", str(folder / "pytest.ini"), "--rootdir", str(folder), "--basetemp", str(folder / "places")]
    words += ["-p", "no:cacheprovider", "--import-mode=importlib", "--tb=short", str(folder / "test_storage.py")]
    pytest.main(words, plugins=[StorageReporter(there, parts)])
    there.send(None)
