"""The end of a run: slices, progress, a wish to stop, and how it is said."""

from collections import deque

import pytest

from kvcache_core.contracts.results import PersistReport
from kvcache_engine import persisting
from kvcache_engine.persisting import SLICE, persist
from kvcache_engine.screen import Screen
from kvcache_engine.view import ProgressView


class Cache:
    """Takes as long as it may for each report but the last."""

    def __init__(self, clock, *reports: PersistReport):
        self.clock, self.reports, self.deadlines = clock, deque(reports), []

    def persist(self, deadline: float) -> PersistReport:
        self.deadlines.append(deadline)
        report = self.reports.popleft()
        self.clock.now += deadline if report.remaining else 0.01
        return report


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(persisting, "monotonic", made)
    return made


def test_pages_add_up_and_the_last_word_counts(clock):
    cache = Cache(
        clock,
        PersistReport(3, {"slow": 2}, 9),
        PersistReport(4, None, 5),
        PersistReport(5, {"bad": 1}, 0, "it is done"),
    )
    shown = []
    done = persist(cache, 30.0, lambda: False, lambda *state: shown.append(state))
    assert shown == [(3, 9), (7, 5), (12, 0)]
    assert done["seconds"] == pytest.approx(2 * SLICE + 0.01)
    assert {**done, "seconds": 0} == {"stored": 12, "dropped": {"bad": 1}, "remaining": 0, "seconds": 0, "message": "it is done"}
    assert not cache.reports


def test_it_never_takes_longer_than_it_may(clock):
    cache = Cache(clock, *[PersistReport(1, None, 50 - i) for i in range(40)])
    done = persist(cache, 1.1, lambda: False, lambda *_: None)
    assert cache.deadlines == pytest.approx([SLICE, SLICE, SLICE, SLICE, 0.1])
    assert (done["stored"], done["remaining"]) == (5, 46)


def test_no_time_at_all_still_asks_once(clock):
    cache = Cache(clock, PersistReport(0, None, 7))
    assert persist(cache, 0.0, lambda: False, lambda *_: None)["remaining"] == 7
    assert cache.deadlines == [0.0]


def test_a_wish_to_stop_is_noticed_after_a_slice(clock):
    cache = Cache(clock, *[PersistReport(1, None, 50)] * 40)
    done = persist(cache, 30.0, lambda: len(cache.deadlines) == 2, lambda *_: None)
    assert (done["stored"], done["remaining"], len(cache.deadlines)) == (2, 50, 2)


def test_who_waits_is_told_why(capsys, monkeypatch):
    now = iter([0.0, 1.0, 2.5, 3.0])
    monkeypatch.setattr("kvcache_engine.view.monotonic", lambda: next(now))
    with Screen(quiet=False) as screen:
        view = ProgressView(screen)
        for stored in range(3):
            view.persisting(stored, 70 - stored)
        view.persisting(72, 0)
    assert capsys.readouterr().err == ("storing 70 pages ... (Ctrl-C leaves the rest)\nstill storing: 2 pages stored, 68 left\n")


def test_what_is_done_at_once_is_not_worth_a_line(capsys):
    with Screen(quiet=False) as screen:
        ProgressView(screen).persisting(0, 0)
    assert capsys.readouterr().err == ""
