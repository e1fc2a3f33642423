"""Runs the storage kit with pytest in a process of its own, so that a backend that hangs or crashes is a finding like others.

The test that runs is a file of a few lines, written for the occasion: what anybody could write. This side imports no pytest.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Collection, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from kvcache_conformance.storage_choice import ChosenStorage
from kvcache_conformance.storage_session import Ended, Message, Planned, Started, run_pytest
from kvcache_conformance.storage_verdict import Finding, Outcome, StorageVerdict
from kvcache_core.errors import KVCacheError

_START_SECONDS = 120.0
"""For importing pytest, hypothesis and the kit on a busy machine."""

TEST_FILE = """
import json
from pathlib import Path

import pytest

from kvcache_conformance.storage_choice import options_in
from kvcache_conformance.storage_tests import InstalledStorageTests

CHOSEN = json.loads((Path(__file__).parent / "chosen.json").read_text(encoding="utf-8"))


class TestStorage(InstalledStorageTests):
    kind = CHOSEN["kind"]

    def options(self, place):
        return options_in(CHOSEN["options"], place)

    def open_limited(self, place, scope, max_bytes):
        if not CHOSEN["has_places"]:
            pytest.skip("the options name a store of their own, and a limit would evict what else is in it; use {place}")
        return super().open_limited(place, scope, max_bytes)
"""


def run_storage_kit(chosen: ChosenStorage, parts: Collection[str], folder: Path, timeout: float) -> StorageVerdict:
    """Judge a backend by these parts of the kit.

    `folder`: an empty one, for all that the tests write. `timeout`: seconds for one test.

    Raises:
        KVCacheError: pytest could not even begin; the text has the end of what it said.
    """
    (folder / "chosen.json").write_text(
        json.dumps({"kind": chosen.kind, "options": chosen.options, "has_places": chosen.has_places}), encoding="utf-8"
    )
    (folder / "test_storage.py").write_text(TEST_FILE, encoding="utf-8")
    spawn = multiprocessing.get_context("spawn")
    answers, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=run_pytest, args=(there, parts, folder))
    process.start()
    there.close()
    try:
        findings = tuple(_findings(answers, process, timeout))
    finally:
        _end(process)
        answers.close()
    if not findings:
        said = (folder / "pytest.log").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise KVCacheError(f"the kit did not start; what pytest said:\n{said}")
    return StorageVerdict(chosen.kind, chosen.provider, chosen.capabilities, findings)


def _findings(answers: Connection, process: BaseProcess, timeout: float) -> Iterator[Finding]:
    """One for each planned test, in order; for those that never ended, too."""
    waiting: dict[str, Planned] = {}
    running: Planned | None = None
    trouble = ""
    while True:
        if not answers.poll(timeout if running else _START_SECONDS):
            trouble = f"it did not end within {timeout:g} s"
            break
        try:
            message: Message = answers.recv()
        except EOFError:
            process.join(_START_SECONDS)
            trouble = f"it ended the process, with status {process.exitcode}"
            break
        match message:
            case None:
                running = None
                break
            case Planned(node):
                waiting[node] = message
            case Started(node):
                running = waiting[node]
            case Ended(node, outcome, text, traceback):
                done = waiting.pop(node)
                running = None
                yield Finding(done.part, done.test, outcome, text, traceback)
    if running is not None:
        del waiting[running.node]
        yield Finding(running.part, running.test, Outcome.FAILED, trouble)
    for left in waiting.values():
        yield Finding(left.part, left.test, Outcome.NOT_RUN)


def _end(process: BaseProcess) -> None:
    """The process and those that its tests started: they are one group."""
    if process.pid is not None and process.is_alive():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not made its group yet
            process.kill()
    process.join()
