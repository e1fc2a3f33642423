"""Traps of prompts that wait for storage (T23, P6): joins, bounds, refusals, one directed test each, and their faults."""

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import compute, evict, finish, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import ROOM, after_restart, host_len, prefetch, script_of, withdraw
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.locks import Refused
from kvcache_unified_hicache.fetches import Fetches


def test_two_prompts_join_over_their_common_prefix(stored):
    """T23: each page is asked for once; the second waits for the first."""
    world = after_restart(stored, ids(1, 2, 3), ids(1, 2, 4))
    script = script_of(world)
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
    world = after_restart(stored, ids(1, 2, 3), ids(1, 2, 4))
    first, second = prefetch(world, ids(1, 2, 3)), prefetch(world, ids(1, 2, 4))
    script_of(world).fates.extend([True, False])
    world.settle()
    assert not first.ticket.ok and not second.ticket.ok
    assert host_len(world, ids(1, 2, 4)) == 4
    finish(world)


def test_a_cancelled_prefetch_serves_whoever_joined(stored):
    world = after_restart(stored, ids(1, 2, 3))
    first, second = prefetch(world, ids(1, 2, 3)), prefetch(world, ids(1, 2))
    world.turn()
    withdraw(world, first)
    world.settle()
    assert second.ticket.ok and host_len(world, ids(1, 2, 3)) == 12
    finish(world)


def test_a_prefetch_that_nobody_wants_any_more_fetches_nothing(stored):
    world = after_restart(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    withdraw(world, started)
    world.settle()
    assert not script_of(world).fetched
    finish(world)


def test_waiting_prompts_take_half_of_the_host_at_most(stored):
    """T23: the second waits until the first gives its slots back; one that is longer than the half is cut."""
    world = after_restart(stored, ids(1, 2, 3), ids(4, 5, 6), ids(7, 8, 9), sizes=TierSizes(PAGE, 16, 8, "insert", "evict"))
    first, second = prefetch(world, ids(1, 2, 3)), prefetch(world, ids(4, 5, 6))
    script = script_of(world)
    script.allowed = 2
    world.turn()
    script.hold_back()
    world.turn()
    assert world.cache.size("full", "host").in_flight == 3
    world.settle()
    assert first.ticket.ok and second.ticket.ok
    short = after_restart(stored, ids(1, 2, 3), sizes=TierSizes(PAGE, 16, 4, "insert", "evict"))
    started = prefetch(short, ids(1, 2, 3))
    short.settle()
    assert started.ticket.span == (0, 8)
    finish(world)
    finish(short)


def test_a_fetch_does_not_take_the_place_of_its_own_beginning(stored):
    """The prefix that memory has is the least recently used of the host when the rest wants room."""
    world = after_restart(stored, ids(1, 2, 3, 4), sizes=TierSizes(PAGE, 16, 6, "insert", "evict"))
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


def test_what_is_not_worth_it_is_not_fetched(stored):
    world = after_restart(stored, ids(1, 2, 3), threshold=12)
    assert world.prefetch(ids(1, 2)) is Refused.NOTHING_TO_DO
    started = prefetch(world, ids(1, 2, 9))
    world.settle()
    assert started.ticket.span == (0, 0) and not script_of(world).fetched
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
    script = script_of(world)
    script.refusing = True
    assert world.prefetch(ids(1)) is Refused.BUSY
    script.word = "open"
    assert world.prefetch(ids(1)) is Refused.UNAVAILABLE
    finish(world)


class TestFaultsOfPrefetches(PlantedFaultTests):
    faults = (
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
            "a fetch evicts the beginning of its own prompt",
            test_a_fetch_does_not_take_the_place_of_its_own_beginning,
            Replacement(Fetches, "_bring", "lock = self._tree.lock(match, host=True)", "lock = self._tree.lock(match, 0)"),
        ),
        Fault(
            "P6: a miss makes room",
            test_a_miss_evicts_nothing,
            Replacement(Fetches, "start", "self._pending.append(fetch)", "self._pending.append(fetch); self._host.alloc(0, 1)"),
        ),
    )
