"""Pages that the backend has are not written again, and its word is not enough for those that it did not deliver."""

import pytest

from kvcache_conformance.backend_tricks import raises
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.storage import NotAllStoredError
from kvcache_unified_hicache.storage import doubts
from kvcache_unified_hicache.storage.doubts import Doubts
from kvcache_unified_hicache.storage.fetch_operation import _Get
from kvcache_unified_hicache.storage.store_operation import _Set


def test_what_the_backend_has_is_not_written_again(guarded):
    """As another process, or an earlier run, has stored it."""
    world = guarded()
    world.hold([1, 3])
    assert world.store([1, 2, 3]) == [True, True, True]
    assert world.backend.called("set") == [world.keys([2])]
    assert world.observer.stored == {world.key(2): world.frame.file_bytes}
    assert world.counters.bytes_moved["store"] == world.frame.file_bytes
    assert world.store([1, 3]) == [True, True]
    assert len(world.backend.called("set")) == 1
    assert world.fetch([1, 2, 3]) == [world.payload(number) for number in (1, 2, 3)]


WRONG_ANSWERS = {
    "fails": raises(OSError("no")),
    "answers too little": lambda honest, keys: honest()[:-1],
    "answers in numbers": lambda honest, keys: [1] * len(keys),
}


@pytest.mark.parametrize("trick", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
def test_a_question_that_fails_costs_no_page_and_is_told(guarded, trick, caplog):
    world = guarded()
    world.backend.tricks["exists"] = trick
    assert world.store([1, 2]) == [True, True]
    assert world.backend.called("set") == [world.keys([1, 2])]
    assert world.counters.storage_state == "ok"
    assert world.guard.state.last_error.startswith("write: asked what is there: ")
    assert world.store([3]) == [True]
    assert len([record for record in caplog.records if "asked what is there" in record.getMessage()]) == 1


def test_a_page_that_was_promised_and_did_not_come_is_written_whatever_is_said(guarded):
    """B2, and the next write of the key repairs it."""
    world = guarded()
    world.backend.tricks["exists"] = lambda honest, keys: [True] * len(keys)
    assert world.fetch([1]) == [None]
    assert world.store([1, 2]) == [True, True]
    assert world.backend.called("set") == [world.keys([1])]
    assert world.fetch([1]) == [world.payload(1)]
    assert world.store([1]) == [True]
    assert len(world.backend.called("set")) == 1


def test_a_bad_page_that_cannot_be_deleted_is_written_over(guarded):
    """B1."""
    world = guarded()
    world.hold([1])
    world.backend.pages[world.key(1)] = b"junk"
    world.backend.tricks["delete"] = raises(OSError("no"))
    assert world.fetch([1]) == [None]
    assert world.store([1]) == [True]
    assert world.fetch([1]) == [world.payload(1)]


def test_a_write_that_fails_leaves_the_doubt(guarded):
    world = guarded(failures_to_open=9)
    world.backend.tricks["exists"] = lambda honest, keys: [True] * len(keys)
    assert world.fetch([1]) == [None]
    world.backend.tricks["set"] = raises(OSError("full"))
    assert world.store([1]) == [False]
    del world.backend.tricks["set"]
    assert world.store([1]) == [True]
    assert world.fetch([1]) == [world.payload(1)]


def test_a_part_of_a_batch_that_is_stored_counts(guarded, caplog):
    """S1: one of several servers is gone. The backend works, so it goes on being asked."""
    world = guarded(failures_to_open=1)

    def a_part(honest, keys):
        honest()
        for key in lost:
            world.backend.pages.pop(key, None)
        raise NotAllStoredError("node 3 is gone", lost)

    lost = world.keys([2, 7])
    world.backend.tricks["set"] = a_part
    world.hold([3])
    assert world.store([1, 2, 3]) == [True, False, True]
    assert world.observer.stored == {world.key(1): world.frame.file_bytes}
    assert world.counters.bytes_moved["store"] == world.frame.file_bytes
    assert world.store([2]) == [False]
    assert not world.guard.refuses("write")
    assert (world.guard.state.word, world.guard.state.last_error) == ("ok", "write: node 3 is gone")
    assert caplog.text.count("node 3 is gone") == 1
    del world.backend.tricks["set"]
    assert world.store([2]) == [True]


def test_doubts_are_bounded(monkeypatch):
    monkeypatch.setattr(doubts, "MOST", 3)
    several = Doubts()
    several.add("abcd")
    several.add("ae")
    assert several.among("abcde") == {"d", "a", "e"}
    several.settle("dz")
    assert several.among("abcde") == {"a", "e"}


def a_wrong_answer_costs_no_page(guarded, caplog):
    test_a_question_that_fails_costs_no_page_and_is_told(guarded, WRONG_ANSWERS["fails"], caplog)


class TestFaultsOfRewrites(PlantedFaultTests):
    faults = (
        Fault(
            "everything is written again",
            test_what_the_backend_has_is_not_written_again,
            Replacement(_Set, "work", "there = self._there()", "there = ()"),
        ),
        Fault(
            "a question that fails fails the batch",
            a_wrong_answer_costs_no_page,
            Replacement(_Set, "_there", "return frozenset()", "raise"),
        ),
        Fault(
            "a question that fails is told to nobody",
            a_wrong_answer_costs_no_page,
            Replacement(_Set, "account", " or self._unanswered", ""),
        ),
        Fault(
            "the backend's word is always enough",
            test_a_page_that_was_promised_and_did_not_come_is_written_whatever_is_said,
            Replacement(_Set, "_there", "if key not in self._store.doubted", ""),
        ),
        Fault(
            "bad pages are no reason to doubt",
            test_a_bad_page_that_cannot_be_deleted_is_written_over,
            Replacement(_Get, "account", "if not came]", "if not came and key not in dict(read.bad)]"),
        ),
        Fault(
            "what is stored of a batch that is not is lost",
            test_a_part_of_a_batch_that_is_stored_counts,
            Replacement(_Set, "work", "error.missing.intersection(keys)", "frozenset(self._keys)"),
        ),
        Fault(
            "a batch counts whole or not at all",
            test_a_part_of_a_batch_that_is_stored_counts,
            Replacement(_Set, "work", "except NotAllStoredError as error:", "except ZeroDivisionError as error:"),
        ),
        Fault(
            "doubts go with the attempt",
            test_a_write_that_fails_leaves_the_doubt,
            Replacement(
                _Set,
                "account",
                "if outcome.error is None:",
                "self._store.doubts.settle(self._keys)\n    if outcome.error is None:",
            ),
        ),
    )
