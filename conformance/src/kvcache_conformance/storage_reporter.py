"""The pytest plugin of `kvcache conformance storage`: plans, starts and ends of tests as messages. It renders nothing."""

from collections.abc import Collection
from multiprocessing.connection import Connection
from typing import Any, final

from kvcache_conformance.storage_session import Ended, Planned, Started
from kvcache_conformance.storage_tests import PARTS
from kvcache_conformance.storage_verdict import Outcome

OPENING = "test_it_opens_and_may_be_closed_twice"
"""The first test. Where it fails, all others would say the same."""


@final
class StorageReporter:
    """The pytest plugin that sends the messages."""

    def __init__(self, there: Connection, parts: Collection[str]) -> None:
        self._there = there
        self._parts = parts
        self._session: Any = None
        self._first = ""
        self._ended: Ended | None = None

    def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
        """Part by part, each in the order of its source; the first test opens the store."""
        items[:] = [item for item in items if part_of(item) in self._parts]
        items.sort(key=lambda item: ([*PARTS].index(part_of(item)), item.function.__code__.co_firstlineno))
        for item in items:
            self._there.send(Planned(item.nodeid, part_of(item), item.function.__name__))
        if items[0].function.__name__ == OPENING:
            self._session, self._first = session, items[0].nodeid

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._there.send(Started(nodeid))
        self._ended = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A test has up to three reports, for its fixtures too; the first that is no pass decides."""
        if self._ended is None and not report.passed:
            outcome = Outcome.SKIPPED if report.skipped else Outcome.FAILED
            self._ended = Ended(report.nodeid, outcome, text_of(report), "" if report.skipped else report.longreprtext)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        ended = self._ended or Ended(nodeid, Outcome.PASSED, "", "")
        self._there.send(ended)
        if nodeid == self._first and ended.outcome is Outcome.FAILED:
            self._session.shouldstop = "it cannot be opened"


def part_of(item: Any) -> str:
    """The part of the kit that a collected test belongs to."""
    return next(part for part, tests in PARTS.items() if item.function.__name__ in vars(tests))


def text_of(report: Any) -> str:
    """What the assertion says, or why the test was skipped."""
    if report.skipped:
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    text = str(report.longrepr.reprcrash.message)
    return text.removeprefix("AssertionError: ")
