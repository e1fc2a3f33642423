"""Traps of storage (T19, T21 to T25, B7, K1, K2, K5, P6, S9, S10 in the flows), one directed test each, and the faults that each
is there for.

Every call goes through the kit, which compares claims, owners and contents after each; a test asserts what is special to it.
"""

from dataclasses import replace

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.page_content import page_content
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, load
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_world import Prefetch
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.locks import Refused
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.errors import StorageError
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.copies_down import CopiesDown
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.host_tier import TreeVictims
from kvcache_unified_hicache.leftovers import Leftovers
from kvcache_unified_hicache.node_digests import NodeDigests
from kvcache_unified_hicache.page_marks import STORED, PageMarks
from kvcache_unified_hicache.persists import Persists
from kvcache_unified_hicache.prefix_pages import PrefixPages
from kvcache_unified_hicache.storage.page_keys import PageKeys

ROOM = TierSizes(PAGE, 16, 64, "insert", "evict")
INSERT = TierSizes(PAGE, 16, 64, "insert", "insert")


def in_storage(stored, *prompts, sizes=ROOM, components=(FULL,), **changes):
    """A world whose memory is empty, over a storage that has the prompts."""
    storage = StorageScript()
    first = stored(sizes, storage, components, **changes)
    for tokens in prompts:
        compute(first, tokens)
        first.settle()
    assert not first.persist(5.0).dropped
    first.cache.close()
    return stored(sizes, storage, components, **changes)


def prefetch(world, tokens, extra_key=()):
    started = world.prefetch(tokens, extra_key)
    assert isinstance(started, Prefetch), started
    world.verify()
    return started


def host_len(world, tokens, extra_key=()):
    return world.checked.match(np.asarray(tokens, np.int32), extra_key).result.host_len


def is_stored(world, tokens, component="full", extra_key=()):
    payload = page_content(extra_key, component, np.asarray(tokens, np.int32).tobytes()).tobytes()
    return payload in world.stored.script.ever_stored


def test_a_prompt_comes_back_after_a_restart(stored):
    world = in_storage(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3, 4))
    world.settle()
    assert started.ticket.ok and started.ticket.span == (0, 12)
    assert world.cache.counters.storage_loaded_tokens == 12
    loaded = load(world, ids(1, 2, 3))
    world.settle()
    assert claim(world, loaded)
    finish(world)


def test_what_came_from_storage_is_not_written_again(stored):
    world = in_storage(stored, ids(1, 2, 3))
    prefetch(world, ids(1, 2, 3))
    world.settle()
    world.evict_host("full", 64)
    assert world.stored.script.quiet
    assert world.cache.counters.storage_written_tokens == 0
    assert world.persist(1.0).stored == 0
    finish(world)


@pytest.mark.parametrize(("sizes", "failures"), [(ROOM, 1), (INSERT, 2)])
def test_a_page_counts_as_stored_when_the_storage_says_so(stored, sizes, failures):
    """Written as it lands, it is tried again as it leaves."""
    world = stored(sizes, StorageScript())
    world.stored.script.fates.extend([True] + [False] * failures)
    compute(world, ids(1, 2))
    world.settle()
    world.evict_host("full", 64)
    world.settle()
    assert is_stored(world, ids(1)) and not is_stored(world, ids(1, 2))
    assert world.cache.counters.postponed["the storage did not take it"] == failures * PAGE
    # The page is in device memory still: it is tried again (T21).
    report = world.persist(5.0)
    assert (report.stored, report.remaining) == (1, 0) and is_stored(world, ids(1, 2))
    finish(world)


@pytest.mark.parametrize("tells", ["at once", "later"])
def test_a_page_is_given_up_when_it_leaves_memory_and_the_storage_did_not_take_it(stored, tells):
    """S10: while it is in memory, it will be offered again."""
    world = stored(INSERT, StorageScript())
    world.stored.script.refusing = True
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    evict(world)
    counters = world.cache.counters
    assert counters.postponed["too many bytes in flight to L3"] == 2 * PAGE and not counters.dropped
    if tells == "later":
        world.stored.script.let_all_through()
        world.stored.script.fates.extend([False, False])
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
    world.stored.script.refusing = True
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    world.evict_host("full", 64)
    counters = world.cache.counters
    assert counters.postponed == {"too many bytes in flight to L3": 2 * PAGE} and not counters.dropped
    evict(world)
    world.turn()
    world.turn()
    world.stored.script.refusing = taken == "never"
    world.evict_host("full", 64)
    world.settle()
    assert counters.dropped == ({"too many bytes in flight to L3": 2 * PAGE} if taken == "never" else {})
    assert counters.postponed == {"too many bytes in flight to L3": 2 * PAGE}
    assert is_stored(world, ids(1, 2)) == (taken != "never")
    finish(world)


def test_what_is_on_its_way_is_not_stored_yet(stored):
    world = stored(INSERT, StorageScript())
    world.stored.script.hold_back()
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    report = world.persist(0.0)
    assert (report.stored, report.remaining) == (0, 2)
    report = world.persist(0.0)
    assert (report.stored, report.remaining) == (0, 2)
    assert len(world.stored.script.pending) == 1
    world.settle()
    assert world.persist(0.0).remaining == 0
    finish(world)


def test_a_refused_page_comes_again(stored):
    """T21, S10: counted while there is no room for it, and written at the next occasion."""
    world = stored(INSERT, StorageScript())
    world.stored.script.refusing = True
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    assert world.cache.counters.postponed["too many bytes in flight to L3"] == 2 * PAGE
    world.stored.script.refusing, world.stored.script.word = True, "open"
    compute(world, ids(1, 2, 3))
    world.turn()
    assert world.cache.counters.postponed["the storage is unavailable"] > 0
    world.stored.script.let_all_through()
    evict(world)
    world.evict_host("full", 64)
    world.settle()
    assert is_stored(world, ids(1, 2)) and is_stored(world, ids(1, 2, 3))
    finish(world)


def test_the_source_is_captured_before_the_slot_goes(stored):
    """B4, T25's other half: an evicted slot is given out again before the storage has written what was in it."""
    world = stored(TierSizes(PAGE, 16, 2, "evict", "evict"), StorageScript())
    compute(world, ids(1, 2))
    evict(world)
    world.settle()
    world.stored.script.hold_back()
    compute(world, ids(3, 4))
    evict(world)  # takes the slots of the first two, whose write waits
    world.turn()
    assert host_len(world, ids(3, 4)) == 8
    world.settle()
    assert is_stored(world, ids(1, 2)) and is_stored(world, ids(1))
    finish(world)


def test_what_is_only_in_memory_is_stored_at_the_end(stored):
    """T25; with an L2 smaller than the request, and one of a single page (P5)."""
    for slots in (64, 3, 1):
        world = stored(TierSizes(PAGE, 16, slots, "evict", "evict"), StorageScript())
        compute(world, ids(1, 2, 3, 4, 5))
        world.cache.close()
        assert all(is_stored(world, ids(*range(1, n + 1))) for n in range(1, 6)), slots
        assert world.stored.script.closed == 1
        world.cache.close()
        assert world.stored.script.closed == 1


def test_close_after_persist_does_not_begin_again(stored):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))
    world.stored.script.refusing = True
    report = world.persist(0.0)
    assert report.remaining == 2
    world.stored.script.let_all_through()
    world.cache.close()
    assert not is_stored(world, ids(1, 2))


def test_close_ends_threads_whatever_fails_before(stored, monkeypatch):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))

    def broken(self, deadline):
        raise RuntimeError("planted")

    monkeypatch.setattr(Leftovers, "persist", broken)
    with pytest.raises(RuntimeError, match="planted"):
        world.cache.close()
    assert world.stored.script.closed == world.script.closed == 1


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


def test_an_unavailable_storage_ends_persist_at_once(stored):
    world = stored(ROOM, StorageScript())
    compute(world, ids(1, 2))
    world.settle()
    world.stored.script.refusing, world.stored.script.word = True, "open"
    report = world.cache.persist(3600.0)
    assert report.dropped == {"the storage is unavailable": 2} and "planted" in report.message


def test_a_storage_that_is_only_read(stored, caplog):
    storage = StorageScript()
    compute(first := stored(ROOM, storage), ids(1, 2))
    first.cache.close()
    with caplog.at_level("WARNING"):
        world = stored(ROOM._replace(persist_on="never"), storage)
    assert "only read" in caplog.text
    prefetch(world, ids(1, 2, 3))
    world.settle()
    assert host_len(world, ids(1, 2)) == 8
    compute(world, ids(5, 6))
    world.settle()
    world.evict_host("full", 64)
    assert "nothing was written" in world.persist(1.0).message
    world.cache.close()
    assert not is_stored(world, ids(5))


def test_two_prompts_join_over_their_common_prefix(stored):
    """T23: each page is asked for once; the second waits for the first."""
    world = in_storage(stored, ids(1, 2, 3), ids(1, 2, 4))
    script = world.stored.script
    first, second = prefetch(world, ids(1, 2, 3)), prefetch(world, ids(1, 2, 4))
    script.allowed = 2
    world.turn()  # both know what the storage has
    script.picks.append(1)  # the second's own page comes first
    script.allowed = 1
    world.turn()
    world.turn()
    world.verify()
    assert len(script.fetched) == len(set(script.fetched)) == 4
    assert not second.ticket.done
    world.settle()
    assert first.ticket.ok and second.ticket.ok
    assert (first.ticket.span, second.ticket.span) == ((0, 12), (0, 12))
    finish(world)


def test_a_join_whose_other_fails(stored):
    world = in_storage(stored, ids(1, 2, 3), ids(1, 2, 4))
    first, second = prefetch(world, ids(1, 2, 3)), prefetch(world, ids(1, 2, 4))
    world.stored.script.fates.extend([True, False])
    world.settle()
    assert not first.ticket.ok and not second.ticket.ok
    assert host_len(world, ids(1, 2, 4)) == 4
    finish(world)


def test_a_cancelled_prefetch_serves_whoever_joined(stored):
    world = in_storage(stored, ids(1, 2, 3))
    first, second = prefetch(world, ids(1, 2, 3)), prefetch(world, ids(1, 2))
    world.turn()
    world.stored.cancel(first)
    world.settle()
    assert second.ticket.ok and host_len(world, ids(1, 2, 3)) == 12
    finish(world)


def test_a_prefetch_that_nobody_wants_any_more_fetches_nothing(stored):
    world = in_storage(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    world.stored.cancel(started)
    world.settle()
    assert not world.stored.script.fetched
    finish(world)


def test_waiting_prompts_take_half_of_the_host_at_most(stored):
    """T23: the second waits until the first gives its slots back; one that is longer than the half is cut."""
    world = in_storage(stored, ids(1, 2, 3), ids(4, 5, 6), ids(7, 8, 9), sizes=TierSizes(PAGE, 16, 8, "insert", "evict"))
    first, second = prefetch(world, ids(1, 2, 3)), prefetch(world, ids(4, 5, 6))
    script = world.stored.script
    script.allowed = 2
    world.turn()
    script.hold_back()
    world.turn()
    assert world.cache.size("full", "host").in_flight == 3
    world.settle()
    assert first.ticket.ok and second.ticket.ok
    short = in_storage(stored, ids(1, 2, 3), sizes=TierSizes(PAGE, 16, 4, "insert", "evict"))
    started = prefetch(short, ids(1, 2, 3))
    short.settle()
    assert started.ticket.span == (0, 8)
    finish(world)
    finish(short)


def test_a_fetch_does_not_take_the_place_of_its_own_beginning(stored):
    """The prefix that memory has is the least recently used of the host when the rest wants room."""
    world = in_storage(stored, ids(1, 2, 3, 4), sizes=TierSizes(PAGE, 16, 6, "insert", "evict"))
    prefetch(world, ids(1, 2))
    world.settle()
    for prompt in (ids(5, 6), ids(7, 8)):
        compute(world, prompt)
        world.settle()
        evict(world)
    assert host_len(world, ids(1, 2)) == 8
    started = prefetch(world, ids(1, 2, 3, 4))
    world.settle()
    assert started.ticket.ok and host_len(world, ids(1, 2, 3, 4)) == 16
    finish(world)


def test_a_beginning_that_went_meanwhile(stored):
    """T24: what arrives then is of no use, and leaves nothing behind."""
    world = in_storage(stored, ids(1, 2, 3, 4))
    prefetch(world, ids(1, 2))
    world.settle()
    started = prefetch(world, ids(1, 2, 3, 4))
    world.turn()
    world.evict_host("full", 64)
    world.verify()
    world.settle()
    assert not started.ticket.ok and started.ticket.span == (0, 0)
    assert host_len(world, ids(1, 2, 3, 4)) == 0
    assert world.cache.size("full", "host").free == 64
    finish(world)


def test_the_same_is_computed_while_it_is_fetched(stored):
    world = in_storage(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    world.turn()
    compute(world, ids(1, 2, 9))
    world.settle()
    assert started.ticket.ok and started.ticket.span == (8, 12)
    assert find(world, ids(1, 2, 3)).result[1:3] == (8, 12)
    finish(world)


def test_a_hole_in_the_host_is_filled(stored):
    """Between what memory has and what comes lies a page that is on its way out of the device."""
    world = in_storage(stored, ids(1, 2, 3, 4))
    compute(world, ids(1, 2))
    world.script.hold_back()
    evict(world)
    started = prefetch(world, ids(1, 2, 3, 4))
    for _ in range(4):
        world.turn()
        world.verify()
    assert started.ticket.done and host_len(world, ids(1, 2, 3, 4)) == 16
    finish(world)


def test_a_reset_makes_every_arrival_a_stranger(stored):
    """S9."""
    world = in_storage(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    world.turn()
    world.stored.script.hold_back()
    again = prefetch(world, ids(1, 2, 3))
    assert world.checked.reset()
    assert started.ticket.done and again.ticket.done and not started.ticket.ok
    assert world.cache.size("full", "host").in_flight == 3
    world.verify()
    late = prefetch(world, ids(1, 2, 3))
    world.stored.script.allowed = 1
    world.stored.script.picks.append(2)  # its question is answered while the old pages are on their way
    world.turn()
    world.settle()
    assert late.ticket.ok and world.cache.size("full", "host").free == 61
    finish(world)


def test_the_length_is_chosen_over_all_components(stored):
    """B7, T23: the storage lacks the newest state, or one page of a window, and the usable prefix ends before it."""
    components = (FULL, SWA, RECURRENT)
    prompt = ids(1, 2, 3, 4, 5, 6)
    world = in_storage(stored, prompt[:12], prompt, components=components)
    script = world.stored.script
    for component, tokens, expected in (("recurrent", prompt, 12), ("swa", prompt[:12], 0)):
        payload = page_content((), component, np.asarray(tokens, np.int32).tobytes()).tobytes()
        [key] = [key for key, kept in script._payload_of.items() if kept == payload]
        del script.pages[key]
        prefetch(world, prompt)
        world.settle()
        assert host_len(world, prompt) == expected
        for name in ("full", "swa", "recurrent"):
            world.evict_host(name, 64)
    # What the storage still promises may not come: the length is chosen again.
    assert world.cache.size("full", "host").free == 64
    finish(world)


def test_only_what_is_needed_is_fetched(stored):
    """Of a window its pages, of a state the last."""
    prompt = ids(1, 2, 3, 4, 5, 6)
    world = in_storage(stored, prompt, components=(FULL, SWA, RECURRENT))
    prefetch(world, prompt)
    world.settle()
    resident = world.ledger.claims.resident
    assert {name: len(pages) for name, pages in resident.items()} == {"full": 6, "swa": 2, "recurrent": 1}
    finish(world)


def test_what_arrives_decides_and_not_what_was_promised(stored):
    """T23 for windows: a page of the window does not come, so the longest usable prefix is another."""
    prompt = ids(1, 2, 3, 4, 5, 6)
    world = in_storage(stored, prompt, components=(FULL, SWA))
    started = prefetch(world, prompt)
    world.turn()
    world.stored.script.fates.extend([True] * 6 + [False])
    world.settle()
    assert not started.ticket.ok and host_len(world, prompt) == 0
    assert world.cache.size("swa", "host").free == world.cache.size("full", "host").free == 64
    finish(world)


@pytest.mark.parametrize("other", [(b"lora",), (b"",), (b"a", b"bc"), (b"ab", b"c")])
def test_another_extra_key_never_hits(stored, other):
    """K1, K2, T19."""
    world = stored(ROOM, storage := StorageScript())
    request = RequestModel(world.checked, ids(1, 2), (b"abc",))
    assert request.admit() and request.compute(8)
    request.finish()
    world.settle()
    world.persist(5.0)
    world.cache.close()
    world = stored(ROOM, storage)
    started = prefetch(world, ids(1, 2), other)
    world.settle()
    assert started.ticket.span == (0, 0) and not storage.fetched
    right = prefetch(world, ids(1, 2), (b"abc",))
    world.settle()
    assert right.ticket.span == (0, 8)
    finish(world)


@pytest.mark.parametrize("change", [{"model_id": "other"}, {"model_version": "2"}])
def test_another_model_never_hits(stored, change):
    """K3, K5."""
    model = ModelSpec("by-value", "1", "full_attention", (FULL,))
    storage = StorageScript()
    first = stored(ROOM, storage, model=model)
    compute(first, ids(1, 2))
    first.cache.close()
    world = stored(ROOM, storage, model=replace(model, **change))
    started = prefetch(world, ids(1, 2))
    world.settle()
    assert started.ticket.span == (0, 0) and not storage.fetched
    again = stored(ROOM, storage, model=model)
    right = prefetch(again, ids(1, 2))
    again.settle()
    assert right.ticket.span == (0, 8)


def test_a_page_under_another_key_is_a_miss_and_repaired(stored):
    """T19: the checksum covers the key."""
    world = in_storage(stored, ids(1, 2))
    script = world.stored.script
    assert script.exchange(0, 1)
    prefetch(world, ids(1, 2))
    world.settle()
    assert script.bad == 2 and not script.pages and host_len(world, ids(1, 2)) == 0
    compute(world, ids(1, 2))
    world.settle()
    world.persist(5.0)
    assert len(script.pages) == 2
    finish(world)


def test_what_is_not_worth_it_is_not_fetched(stored):
    world = in_storage(stored, ids(1, 2, 3), threshold=12)
    assert world.prefetch(ids(1, 2)) is Refused.NOTHING_TO_DO
    started = prefetch(world, ids(1, 2, 9))
    world.settle()
    assert started.ticket.span == (0, 0) and not world.stored.script.fetched
    started = prefetch(world, ids(1, 2, 3))
    world.settle()
    assert started.ticket.span == (0, 12)
    assert world.prefetch([]) is Refused.NOTHING_TO_DO
    finish(world)


def test_a_miss_evicts_nothing(stored):
    """P6."""
    world = stored(TierSizes(PAGE, 16, 4, "insert", "evict"), StorageScript())
    compute(world, ids(1, 2, 3, 4))
    world.settle()
    evict(world)
    prefetch(world, ids(7, 8))
    world.settle()
    assert host_len(world, ids(1, 2, 3, 4)) == 16
    finish(world)


def test_the_storage_is_busy_or_away(stored):
    world = stored(ROOM, StorageScript())
    script = world.stored.script
    script.refusing = True
    assert world.prefetch(ids(1)) is Refused.BUSY
    script.word = "open"
    assert world.prefetch(ids(1)) is Refused.UNAVAILABLE
    finish(world)


def test_all_ranks_take_what_the_last_one_has(stored):
    """The other rank's storage lacks a page: what this one promises, and what arrives, is cut to what both have."""
    asked = []

    def agree(values):
        asked.append(list(values))
        # Another rank without the third page.
        return [0 if len(values) == 3 and i == 2 else value for i, value in enumerate(values)]

    world = in_storage(stored, ids(1, 2, 3), agree=agree)
    started = prefetch(world, ids(1, 2, 3))
    world.settle()
    assert [1, 1, 1] in asked
    assert started.ticket.span == (0, 8)
    finish(world)


def test_a_backend_that_does_not_work_stops_the_program_at_start(stored):
    """C5; the error names the field."""

    class ReadOnly:
        def __call__(self, options, scope):
            raise PermissionError("planted")

    with pytest.raises(StorageError, match=r"'script' cannot be opened: PermissionError: planted") as info:
        stored(ROOM, StorageScript(), backend=ReadOnly())
    assert info.value.path == ("hicache", "storage")


def test_what_is_stored_after_a_split(stored):
    """Digests and marks belong to positions: what is cut stays stored, and its parts keep their names."""
    world = stored(INSERT, StorageScript())
    world.stored.script.fates.extend([True, True, True, False])
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
    world = stored(INSERT, world.stored.script)
    for tokens in (ids(1, 2, 3, 8), ids(1, 2, 7), ids(1, 2, 3, 4)):
        prefetch(world, tokens)
        world.settle()
        assert host_len(world, tokens) == len(tokens)
    finish(world)


def test_a_prompt_that_leaves_a_node_in_its_middle(stored):
    world = in_storage(stored, ids(1, 2, 3), ids(1, 5, 6))
    prefetch(world, ids(1, 2, 3))
    world.settle()
    started = prefetch(world, ids(1, 5, 6))
    world.settle()
    assert started.ticket.span == (4, 12)
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


def another_extra_key(stored):
    test_another_extra_key_never_hits(stored, (b"lora",))


def another_version(stored):
    test_another_model_never_hits(stored, {"model_version": "2"})


class TestFaultsOfStorage(PlantedFaultTests):
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
                'return UNAVAILABLE if self._guard.refuses("write") else TOO_MANY_BYTES',
                "marks.set(places, STORED); return TOO_MANY_BYTES",
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
            Replacement(CopiesDown, "leaves_host", "node.cells[c].device is None", "True"),
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
            Replacement(TreeVictims, "take", "self._write_back(victim, c)", "pass"),
        ),
        Fault(
            "T25: close persists nothing",
            test_what_is_only_in_memory_is_stored_at_the_end,
            Replacement(UnifiedRadixCache, "close", "if not self._persisted:", "if False:"),
        ),
        Fault(
            "T25: persist forgets what only L1 has",
            test_what_is_only_in_memory_is_stored_at_the_end,
            Replacement(Leftovers, "_copy", "self._backups.start(node, c)", "False"),
        ),
        Fault(
            "P5: a node larger than L2 is given up",
            test_what_is_only_in_memory_is_stored_at_the_end,
            Replacement(Leftovers, "_pieces", "node.end - node.start > most", "False"),
        ),
        Fault(
            "what was fetched is written again",
            test_what_came_from_storage_is_not_written_again,
            Replacement(Attaching, "attach", "self._mark(fetch, arrived, length)", "pass"),
        ),
        Fault(
            "T23: prompts do not join",
            test_two_prompts_join_over_their_common_prefix,
            Replacement(Fetches, "_missing", "and key not in self._coming", ""),
        ),
        Fault(
            "T23: who joins does not wait",
            test_two_prompts_join_over_their_common_prefix,
            Replacement(Fetches, "_reserve", "fetch.waits_for +=", "_ ="),
        ),
        Fault(
            "T23: no bound on waiting prompts",
            test_waiting_prompts_take_half_of_the_host_at_most,
            Replacement(Fetches, "_bring", "self._host.total(c) // 2", "self._host.total(c)"),
        ),
        Fault(
            "T23: the length is what was promised",
            test_what_arrives_decides_and_not_what_was_promised,
            Replacement(
                Attaching,
                "attach",
                "length = pages.usable(either(pages.resident(), arrived), fetch.length)",
                "length = fetch.length",
            ),
        ),
        Fault(
            "B7: full attention decides alone",
            test_the_length_is_chosen_over_all_components,
            Replacement(
                PrefixPages,
                "usable",
                "longest_usable(self._geometries, self.ends[:n], [flags[:n] for flags in there])",
                "longest_usable(self._geometries[:1], self.ends[:n], [flags[:n] for flags in there[:1]])",
            ),
        ),
        Fault(
            "T24: residency is what it was when the fetch was planned",
            test_a_beginning_that_went_meanwhile,
            Replacement(Attaching, "attach", "either(pages.resident(), arrived)", "[[True] * pages.n for _ in arrived]"),
        ),
        Fault(
            "a fetch evicts the beginning of its own prompt",
            test_a_fetch_does_not_take_the_place_of_its_own_beginning,
            Replacement(Fetches, "_bring", "lock = self._tree.lock(match, host=True)", "lock = self._tree.lock(match, 0)"),
        ),
        Fault(
            "S9: a reset lets late pages in",
            test_a_reset_makes_every_arrival_a_stranger,
            Replacement(Fetches, "forget", "fetch.forgotten = True", "pass"),
        ),
        Fault(
            "S9: a reset loses slots",
            test_a_reset_makes_every_arrival_a_stranger,
            Replacement(Fetches, "_end", "self._free(request.c, request.slots)", "pass"),
        ),
        Fault(
            "S9: after a reset prompts join what was forgotten",
            test_a_reset_makes_every_arrival_a_stranger,
            Replacement(Fetches, "forget", "self._coming.clear()", "pass"),
        ),
        Fault(
            "what is fetched besides is not freed",
            test_the_same_is_computed_while_it_is_fetched,
            Replacement(Attaching, "attach", "if slot not in taken[request.c]", "if not taken[request.c]"),
        ),
        Fault(
            "K1: keys without the extra key",
            another_extra_key,
            Replacement(PageKeys, "root", "frame(*check_extra_key(extra_key))", "b''"),
        ),
        Fault(
            "K5: keys without the version", another_version, Replacement(PageKeys, "__init__", "_text(model.model_version), ", "")
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
        Fault(
            "a prompt's digests end at the node, not at the match",
            test_a_prompt_that_leaves_a_node_in_its_middle,
            Replacement(NodeDigests, "of_prompt", "pages[: len(pages) - cut]", "pages"),
        ),
        Fault(
            "P6: a miss makes room",
            test_a_miss_evicts_nothing,
            Replacement(Fetches, "start", "self._pending.append(fetch)", "self._pending.append(fetch); self._host.alloc(0, 1)"),
        ),
        Fault(
            "only a rank's own storage counts",
            test_all_ranks_take_what_the_last_one_has,
            Replacement(
                Fetches,
                "_agreed",
                "self._agree([int(flag) for of_component in flags for flag in of_component])",
                "[int(flag) for of_component in flags for flag in of_component]",
            ),
        ),
    )
