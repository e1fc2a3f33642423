"""Calls of the backend, and makers and takers of pages, that raise or give nonsense: a batch is lost, and nothing else."""

import pytest

from kvcache_conformance.backend_tricks import gives, once, raises
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage import answers, operation
from kvcache_unified_hicache.storage.store_operation import _Set


class Weird(BaseException):
    """Not even an Exception."""


FAILURES = {
    "raises": raises(OSError("gone")),
    "raises without a text": raises(RuntimeError()),
    "wants to end the program": raises(SystemExit(3)),
    "raises something weird": raises(Weird()),
}
WRONG_ANSWERS = {
    "None": lambda answer: None,
    "too few": lambda answer: answer[:-1],
    "too many": lambda answer: [*answer, answer[0]],
    "a generator": lambda answer: (item for item in answer),
    "a dictionary": lambda answer: dict(enumerate(answer)),
    "numbers": lambda answer: [7] * len(answer),
    "texts": lambda answer: ["yes"] * len(answer),
}


def test_the_first_call_that_fails_is_told_with_its_text(guarded, caplog):
    """One in a thousand that fails leaves the state `ok`: the reason would be nowhere."""
    world = guarded()
    world.hold([1])
    world.backend.tricks["exists"] = once(raises(ValueError("too many keys in one call")))
    assert world.exists([1]) == [False]
    world.backend.tricks["exists"] = once(raises(ValueError("again")))
    assert world.exists([1]) == [False]
    assert world.exists([1]) == [True] and world.counters.storage_state == "ok"
    assert ["read: ValueError: too many keys in one call" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("method", ["exists", "get", "set"])
def test_a_call_that_fails_costs_its_batch(guarded, method, failure):
    """S1, S9: the worker goes on with the next one."""
    world = guarded(workers=1)
    if method != "set":
        world.hold(range(6))
    world.backend.tricks[method] = once(failure)
    if method == "exists":
        assert world.exists(range(6)) == [False] * 6
        assert world.exists(range(6)) == [True] * 6
        assert world.counters.misses == {"storage error": 6}
    elif method == "get":
        assert world.fetch(range(6)) == [None] * 4 + [world.payload(4), world.payload(5)]
        assert world.counters.misses == {"storage error": 4}
    else:
        assert world.store(range(6)) == [False] * 4 + [True] * 2
        assert sorted(world.backend.pages) == sorted(world.keys([4, 5]))
        assert sorted(world.observer.stored) == sorted(world.keys([4, 5]))
        assert world.counters.bytes_moved == {"store": 2 * world.frame.file_bytes}
    assert world.guard.state.word == "ok"


@pytest.mark.parametrize("change", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
@pytest.mark.parametrize("method", ["exists", "get"])
def test_a_wrong_answer_costs_its_batch(guarded, method, change):
    """B2, S1: a short, an extra or a foreign value says nothing about any page of its call, so none is deleted either."""
    world = guarded(workers=1)
    world.hold(range(6))
    world.backend.tricks[method] = once(gives(change))
    if method == "exists":
        assert world.exists(range(6)) == [False] * 6
        assert world.counters.misses == {"storage answer": 6}
    else:
        assert world.fetch(range(6)) == [None] * 4 + [world.payload(4), world.payload(5)]
        assert world.counters.misses == {"storage answer": 4}
    assert sorted(world.backend.pages) == sorted(world.keys(range(6)))


def test_what_went_wrong_is_in_the_state(guarded):
    world = guarded()
    world.backend.tricks["set"] = raises(OSError(28, "No space left on device"))
    assert world.store([1]) == [False]
    assert world.guard.state.word == "failing"
    assert world.counters.storage_state == "failing: write: OSError: [Errno 28] No space left on device"
    world.backend.tricks.clear()
    assert world.store([1]) == [True]
    assert world.counters.storage_state == "ok"
    assert world.guard.state.last_error.endswith("No space left on device")


@pytest.mark.parametrize("wrong", [[], [b"one too many"] * 3])
def test_assembling_that_fails_stores_nothing(guarded, caplog, wrong):
    """Our own fault, not the backend's: logged, and the backend is not blamed."""
    world = guarded()
    assert world.guard.store(world.keys([1, 2]), 100, lambda: wrong, world.answers.append)
    assert world.settle() == [[False, False]]
    assert world.guard.store(world.keys([1, 2]), 100, lambda: 1 // 0, world.answers.append)
    assert world.settle() == [[False, False]]
    assert world.backend.calls == []
    assert world.guard.state.word == "ok"
    assert "ZeroDivisionError" in caplog.text
    assert world.store([1]) == [True]


@pytest.mark.parametrize(("method", "answer"), [("parts", [None]), ("place", [None]), ("finish", None)])
def test_unpacking_that_fails_gives_nothing(guarded, room, caplog, monkeypatch, method, answer):
    world = guarded()
    world.hold([1])
    broken = room(1, world.frame)
    monkeypatch.setattr(broken, method, lambda *_: 1 // 0)
    assert world.guard.fetch(world.keys([1]), world.frame, broken, world.answers.append)
    assert world.settle() == [answer]
    assert not world.counters.misses
    assert world.guard.state.word == "ok"
    assert "ZeroDivisionError" in caplog.text
    assert world.fetch([1]) == [world.payload(1)]


def a_short_answer_costs_its_batch(guarded):
    test_a_wrong_answer_costs_its_batch(guarded, "get", WRONG_ANSWERS["too few"])


def a_foreign_answer_costs_its_batch(guarded):
    test_a_wrong_answer_costs_its_batch(guarded, "exists", WRONG_ANSWERS["numbers"])


def a_failing_write_costs_its_batch(guarded):
    test_a_call_that_fails_costs_its_batch(guarded, "set", FAILURES["raises"])


class TestFaultsOfFailingCalls(PlantedFaultTests):
    faults = (
        Fault(
            "a short answer is filled up",
            a_short_answer_costs_its_batch,
            Replacement(answers, "_one_each", "if len(items) != n:", "items = [*items, *[None] * n][:n]\n    if not items:"),
        ),
        Fault(
            "any truth is an answer",
            a_foreign_answer_costs_its_batch,
            Replacement(operation, "checked_flags", "type(flag) is not bool", "flag is None"),
        ),
        Fault(
            "stored without an answer",
            a_failing_write_costs_its_batch,
            Replacement(
                _Set,
                "account",
                "if outcome.error is None:",
                "self._store.taken = [True] * len(self._keys)\n    if outcome.error is None:",
            ),
        ),
    )
