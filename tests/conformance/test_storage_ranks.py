"""Two ranks with storages and clocks of their own, each in a thread: they agree on vectors of equal length, equally often, and
what they do to memory is the same."""

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import compute, finish, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import ROOM, after_restart, prefetch
from kvcache_conformance.tier_steps import TierSizes
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.leftovers import Leftovers

SMALL = TierSizes(PAGE, 16, 2, "evict", "evict")


def shape(world):
    """Everything that memory claims."""
    world.verify()
    return {name: sorted(pages) for name, pages in world.ledger.claims.resident.items()}, world.cache.size("full", "host")


@pytest.mark.parametrize("leaver", [0, 1])
def test_interest_that_ends_on_one_rank_ends_on_both(stored, ranks, leaver):
    def work(rank, agree):
        storage = StorageScript()
        compute(first := stored(ROOM, storage), ids(1, 2, 3))
        first.settle()
        first.cache.close()
        world = stored(ROOM, storage, agree=agree)
        started, other = world.prefetch(ids(1, 2, 3)), world.prefetch(ids(7, 8))
        if rank == leaver:
            world.stored.cancel(started)
        for _ in range(6):
            world.turn()
        assert started.ticket.done and other.ticket.done
        return shape(world), list(storage.fetched)

    one, two = ranks.run(work)
    assert one == two and not one[1]


@pytest.mark.parametrize("trouble", ["refuses", "fails", "slow"])
def test_copies_for_persist_are_the_same_on_all_ranks(stored, ranks, trouble):
    def work(rank, agree):
        storage = StorageScript()
        world = stored(SMALL, storage, agree=agree)
        compute(world, ids(1, 2, 3, 4, 5))
        compute(world, ids(1, 2, 6, 7))
        if rank == 0 and trouble == "fails":
            storage.fates.extend([True, False, False, True, False])
        elif rank == 0 and trouble == "slow":
            storage.hold_back()
        elif rank == 0:
            storage.refusing, storage.word = True, "open"
        report = world.persist(0.05 if trouble == "slow" else 20.0)
        return shape(world), report

    (one, report), (two, other) = ranks.run(work)
    assert one == two
    assert other.stored >= report.stored
    if trouble == "refuses":
        assert report.dropped and other.dropped


def test_a_fetch_that_waits_for_room_is_planned_when_room_changed(stored, monkeypatch):
    sizes = TierSizes(PAGE, 16, 8, "insert", "evict")
    storage = StorageScript()
    first = stored(sizes, storage)
    for tokens in (ids(1, 2, 3), ids(4, 5, 6)):
        compute(first, tokens)
        first.settle()
    first.cache.close()
    world = stored(sizes, storage)
    one, two = world.prefetch(ids(1, 2, 3)), world.prefetch(ids(4, 5, 6))
    storage.allowed = 2
    world.turn()
    storage.hold_back()
    world.turn()
    planned = []
    fitting = Fetches._fitting

    def counted(self, *arguments):
        planned.append(arguments)
        return fitting(self, *arguments)

    monkeypatch.setattr(Fetches, "_fitting", counted)
    for _ in range(10):
        world.turn()
    assert not two.ticket.done and not planned
    world.settle()
    assert one.ticket.ok and two.ticket.ok and planned


def test_leftovers_agree_on_everything_that_starts_a_copy(stored, monkeypatch):
    """A rank that may not copy holds the others back: each `False` of another rank is heard."""
    heard = []

    def agree(values):
        heard.append(len(values))
        return [0] * len(values)

    world = stored(SMALL, StorageScript())
    compute(world, ids(1, 2))
    made = Leftovers.__init__

    def with_another_rank(self, store, backups, persists, guard, room, turn, _):
        made(self, store, backups, persists, guard, room, turn, agree)

    monkeypatch.setattr(Leftovers, "__init__", with_another_rank)
    report = world.persist(3600.0)
    assert report.stored == 0 and report.remaining == 2 and not any(world.script.pending.values())
    assert heard == [1, 5, 1]


def test_all_ranks_take_what_the_last_one_has(stored):
    """The other rank's storage lacks a page: what this one promises, and what arrives, is cut to what both have."""
    asked = []

    def agree(values):
        asked.append(list(values))
        # Another rank without the third page.
        return [0 if len(values) == 3 and i == 2 else value for i, value in enumerate(values)]

    world = after_restart(stored, ids(1, 2, 3), agree=agree)
    started = prefetch(world, ids(1, 2, 3))
    world.settle()
    assert [1, 1, 1] in asked
    assert started.ticket.span == (0, 8)
    finish(world)


def interest_ends_on_one_rank(stored, ranks):
    test_interest_that_ends_on_one_rank_ends_on_both(stored, ranks, 0)


def one_storage_fails(stored, ranks):
    test_copies_for_persist_are_the_same_on_all_ranks(stored, ranks, "fails")


class TestFaultsOfRanks(PlantedFaultTests):
    faults = (
        Fault(
            "each rank has its own interest",
            interest_ends_on_one_rank,
            Replacement(Fetches, "poll", "bool(wanted)", "fetch.interest > 0"),
        ),
        Fault(
            "each rank gives up by itself",
            one_storage_fails,
            Replacement(
                Leftovers,
                "persist",
                "self._agree([*map(int, flags), *(int(i in self._over) for i in self._todo)])",
                "[*map(int, flags), *(int(i in self._over) for i in self._todo)]",
            ),
        ),
        Fault(
            "each rank stores what its own storage lacks",
            test_leftovers_agree_on_everything_that_starts_a_copy,
            Replacement(
                Leftovers,
                "_unstored",
                "self._agree([int(self._persists.is_stored(*item)) for item in items])",
                "[int(self._persists.is_stored(*item)) for item in items]",
            ),
        ),
        Fault(
            "a fetch is planned in every step",
            test_a_fetch_that_waits_for_room_is_planned_when_room_changed,
            Replacement(Fetches, "_bring", "fetch.waits_with == room_now", "False"),
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
