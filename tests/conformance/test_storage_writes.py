"""Traps of what goes to storage while a cache runs (T21, B4, S10), one directed test each, and their faults."""

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, RECURRENT
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import compute, evict, finish, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import INSERT, ROOM, after_restart, host_len, is_stored, prefetch, script_of
from kvcache_conformance.tier_steps import TierSizes
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.host_tier import TreeVictims
from kvcache_unified_hicache.page_marks import STORED, PageMarks
from kvcache_unified_hicache.persists import Persists


def test_what_came_from_storage_is_not_written_again(stored):
    world = after_restart(stored, ids(1, 2, 3))
    prefetch(world, ids(1, 2, 3))
    world.settle()
    world.evict_host("full", 64)
    assert script_of(world).quiet
    assert world.cache.counters.storage_written_tokens == 0
    assert world.persist(1.0).stored == 0
    finish(world)


@pytest.mark.parametrize(("sizes", "failures"), [(ROOM, 1), (INSERT, 2)])
def test_a_page_counts_as_stored_when_the_storage_says_so(stored, sizes, failures):
    """Written as it lands, it is tried again as it leaves."""
    world = stored(sizes, StorageScript())
    script_of(world).fates.extend([True] + [False] * failures)
    compute(world, ids(1, 2))
    world.settle()
    world.evict_host("full", 64)
    world.settle()
    assert is_stored(world, "full", ids(1)) and not is_stored(world, "full", ids(1, 2))
    assert world.cache.counters.postponed["the storage did not take it"] == failures * PAGE
    # The page is in device memory still: it is tried again (T21).
    report = world.persist(5.0)
    assert (report.stored, report.remaining) == (1, 0) and is_stored(world, "full", ids(1, 2))
    finish(world)


@pytest.mark.parametrize("tells", ["at once", "later"])
def test_a_page_is_given_up_when_it_leaves_memory_and_the_storage_did_not_take_it(stored, tells):
    """S10: while it is in memory, it will be offered again."""
    world = stored(INSERT, StorageScript())
    script_of(world).refusing = True
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    evict(world)
    counters = world.cache.counters
    assert counters.postponed["too many bytes in flight to L3"] == 2 * PAGE and not counters.dropped
    if tells == "later":
        script_of(world).let_all_through()
        script_of(world).fates.extend([False, False])
    world.evict_host("full", 64)
    world.settle()
    reason = "too many bytes in flight to L3" if tells == "at once" else "the storage did not take it"
    assert counters.dropped == {reason: 2 * PAGE}
    assert counters.postponed == {"too many bytes in flight to L3": 2 * PAGE}
    finish(world)


@pytest.mark.parametrize("taken", ["never", "later"])
def test_what_leaves_the_host_while_the_device_has_it_is_put_off(stored, taken):
    """S10: it is copied to the host again before the device loses it, and only then given up or stored."""
    world = stored(ROOM, StorageScript())
    script_of(world).refusing = True
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    world.evict_host("full", 64)
    counters = world.cache.counters
    assert counters.postponed == {"too many bytes in flight to L3": 2 * PAGE} and not counters.dropped
    evict(world)
    world.turn()
    world.turn()
    script_of(world).refusing = taken == "never"
    world.evict_host("full", 64)
    world.settle()
    assert counters.dropped == ({"too many bytes in flight to L3": 2 * PAGE} if taken == "never" else {})
    assert counters.postponed == {"too many bytes in flight to L3": 2 * PAGE}
    assert is_stored(world, "full", ids(1, 2)) == (taken != "never")
    finish(world)


def test_what_is_on_its_way_is_not_stored_yet(stored):
    world = stored(INSERT, StorageScript())
    script_of(world).hold_back()
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    report = world.persist(0.0)
    assert (report.stored, report.remaining) == (0, 2)
    report = world.persist(0.0)
    assert (report.stored, report.remaining) == (0, 2)
    assert len(script_of(world).pending) == 1
    world.settle()
    assert world.persist(0.0).remaining == 0
    finish(world)


def test_a_refused_page_comes_again(stored):
    """T21, S10: counted while there is no room for it, and written at the next occasion."""
    world = stored(INSERT, StorageScript())
    script_of(world).refusing = True
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    assert world.cache.counters.postponed["too many bytes in flight to L3"] == 2 * PAGE
    script_of(world).refusing, script_of(world).word = True, "open"
    compute(world, ids(1, 2, 3))
    world.turn()
    assert world.cache.counters.postponed["the storage is unavailable"] > 0
    script_of(world).let_all_through()
    evict(world)
    world.evict_host("full", 64)
    world.settle()
    assert is_stored(world, "full", ids(1, 2)) and is_stored(world, "full", ids(1, 2, 3))
    finish(world)


def test_the_source_is_captured_before_the_slot_goes(stored):
    """B4, T25's other half: an evicted slot is given out again before the storage has written what was in it."""
    world = stored(TierSizes(PAGE, 16, 2, "evict", "evict"), StorageScript())
    compute(world, ids(1, 2))
    evict(world)
    world.settle()
    script_of(world).hold_back()
    compute(world, ids(3, 4))
    evict(world)  # takes the slots of the first two, whose write waits
    world.turn()
    assert host_len(world, ids(3, 4)) == 8
    world.settle()
    assert is_stored(world, "full", ids(1, 2)) and is_stored(world, "full", ids(1))
    finish(world)


def test_a_state_counts_as_one_token_everywhere(stored):
    world = stored(ROOM, StorageScript(), (FULL, RECURRENT))
    compute(world, ids(1, 2))
    world.settle()
    counters = world.cache.counters
    assert counters.inserted_tokens == counters.host_written_tokens == 9
    world.persist(5.0)
    assert counters.storage_written_tokens == 9
    world.checked.evict("full", 16)
    world.evict_host("recurrent", 1)
    assert (counters.device_evicted_tokens, counters.host_evicted_tokens) == (8, 1)
    finish(world)


def test_what_is_stored_after_a_split(stored):
    """Digests and marks belong to positions: what is cut stays stored, and its parts keep their names."""
    world = stored(INSERT, StorageScript())
    script_of(world).fates.extend([True, True, True, False])
    compute(world, ids(1, 2, 3, 4))
    world.settle()
    written = world.cache.counters.storage_written_tokens
    compute(world, ids(1, 2, 7))
    world.settle()
    assert world.cache.counters.storage_written_tokens - written == PAGE
    compute(world, ids(1, 2, 3, 8))
    world.settle()
    assert world.cache.counters.storage_written_tokens - written == 2 * PAGE
    assert world.persist(5.0).stored == 1
    world.cache.close()
    world = stored(INSERT, script_of(world))
    for tokens in (ids(1, 2, 3, 8), ids(1, 2, 7), ids(1, 2, 3, 4)):
        prefetch(world, tokens)
        world.settle()
        assert host_len(world, tokens) == len(tokens)
    finish(world)


def claims_before_the_answer(monkeypatch):
    send = Persists._send

    def planted(self, c, digests, slots, rows, marks, places):
        reason = send(self, c, digests, slots, rows, marks, places)
        marks.set(places, STORED)
        return reason

    monkeypatch.setattr(Persists, "_send", planted)


def page_counts_as_stored(stored):
    test_a_page_counts_as_stored_when_the_storage_says_so(stored, ROOM, 1)


def leaves_memory(stored):
    test_a_page_is_given_up_when_it_leaves_memory_and_the_storage_did_not_take_it(stored, "later")


def was_put_off(stored):
    test_what_leaves_the_host_while_the_device_has_it_is_put_off(stored, "later")


class TestFaultsOfWrites(PlantedFaultTests):
    faults = (
        Fault("stored is claimed before the answer", test_what_is_on_its_way_is_not_stored_yet, claims_before_the_answer),
        Fault(
            "a failed page counts as stored",
            page_counts_as_stored,
            Replacement(Persists, "_answered", "marks.set(failed, ABSENT)", "marks.set(failed, STORED)"),
        ),
        Fault(
            "T21: a refused page is never tried again",
            test_a_refused_page_comes_again,
            Replacement(
                Persists,
                "_send",
                'return Reasons.UNAVAILABLE if self._guard.refuses("write") else Reasons.TOO_MANY_BYTES_TO_L3',
                "marks.set(places, STORED); return Reasons.TOO_MANY_BYTES_TO_L3",
            ),
        ),
        Fault(
            "S10: what leaves memory counts as put off",
            leaves_memory,
            Replacement(Persists, "offer", "marks.leave(first, n)", "pass"),
        ),
        Fault(
            "S10: what the device has still counts as lost",
            was_put_off,
            Replacement(TreeVictims, "take", "victim.cells[c].device is None", "True"),
        ),
        Fault(
            "S10: what is refused is not counted",
            test_a_refused_page_comes_again,
            Replacement(Persists, "offer", "counter[reason] +=", "_ ="),
        ),
        Fault(
            "B4: the source is read when the write begins",
            test_the_source_is_captured_before_the_slot_goes,
            Replacement(
                Persists,
                "_send",
                "_sealed(frame, keys, captured)",
                "lambda: _sealed(frame, keys, self._page_bytes.capture(c, slots[rows]))()",
            ),
        ),
        Fault(
            "host victims are not written back",
            test_the_source_is_captured_before_the_slot_goes,
            Replacement(TreeVictims, "take", "self._write_back(victim, c, victim.cells[c].device is None)", "pass"),
        ),
        Fault(
            "what was fetched is written again",
            test_what_came_from_storage_is_not_written_again,
            Replacement(Attaching, "attach", "self._mark(fetch, arrived, length)", "pass"),
        ),
        Fault(
            "a split gives digests to the wrong part",
            test_what_is_stored_after_a_split,
            Replacement(
                NodeStore,
                "split",
                "head.digests, node.digests = node.digests[:cut_digests], node.digests[cut_digests:]",
                "head.digests = node.digests[:cut_digests]",
            ),
        ),
        Fault(
            "a split forgets what is stored",
            test_what_is_stored_after_a_split,
            Replacement(PageMarks, "place", "(position - self._start) // self._page_size", "0"),
        ),
    )
