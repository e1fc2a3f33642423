"""Loads on several ranks: all of them start a load or none does, and what one had started is gone everywhere.

Two ranks run in a thread each; where they would not ask each other equally often, `ranks` fails. Pages are handed out alike on
all ranks, so the numbers are compared, too.
"""

import functools

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import ALL, ROOM
from kvcache_conformance.geometries import FULL
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.locks import Refused
from kvcache_unified_hicache.load_planning import LoadPlanning
from kvcache_unified_hicache.loads import Loads

SIZES = ROOM._replace(interval=PAGE)
"""A state at every page."""

CHAIN = (ids(1, 2), ids(1, 2, 3, 4))
"""One prompt in two nodes, so that full attention has two of them to bring."""


@pytest.fixture
def tiered_rank(tiered, unified):
    """`tiered_rank(agree)`: a world with full attention, windows and states."""
    return lambda agree, components=ALL: tiered(SIZES, components, functools.partial(unified, agree=agree))


def raises_once(world, number):
    """The load of that number from now on has no memory for its source."""
    controller = world.cache._host.controller
    real, calls = controller.load, []

    def planted(*arguments):
        calls.append(None)
        if len(calls) == number + 1:
            raise MemoryError("planted")
        return real(*arguments)

    controller.load = planted


def sizes(world):
    return [world.cache.size(name, tier) for name in world.host.geometries for tier in ("device", "host")]


def on_device(world):
    return {name: dict(world.checked.model.resident(name)) for name in world.host.geometries}


def refused(world, tokens):
    """A load that is refused, although there is room. Nothing of it is under way, now or after the next steps."""
    checked, match = world.checked, find(world, tokens)
    before = sizes(world), list(world.script.pending["load"])
    locked = {name: checked.locked(name) for name in world.host.geometries}
    checked.forget_journals()
    assert world.cache.load(match.result) is Refused.NO_ROOM
    checked.learn("load", locked, allocates=True)
    assert (sizes(world), list(world.script.pending["load"])) == before, "a load that was refused has left something behind"
    assert world.cache.counters.misses.total() == 1, "on every rank, whichever had the trouble"
    world.cache.check_integrity()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_load_that_one_rank_cannot_start_is_started_on_none(tiered_rank, ranks, number):
    """Of full attention, of the window, of the state. The next one brings all of them, into the same pages on both ranks."""

    def work(rank, agree):
        world = tiered_rank(agree)
        in_host(world, *CHAIN)
        if rank == 0:
            raises_once(world, number)
        refused(world, CHAIN[1])
        world.turn()
        started = load(world, CHAIN[1])
        world.settle()
        assert claim(world, started)
        found = on_device(world)
        finish(world)
        return found

    one, two = ranks.run(work)
    assert one == two


def test_a_load_that_is_joined_goes_on(tiered_rank, ranks):
    """What another request waits for is not the refused one's to drop."""

    def work(rank, agree):
        world = tiered_rank(agree)
        in_host(world, *CHAIN)
        world.script.hold_back()
        first = load(world, CHAIN[0])
        if rank == 0:
            raises_once(world, 0)
        refused(world, CHAIN[1])
        world.settle()
        assert claim(world, first)
        second = load(world, CHAIN[1])
        world.settle()
        assert claim(world, second)
        found = on_device(world)
        finish(world)
        return found

    one, two = ranks.run(work)
    assert one == two


def test_no_room_after_all_on_one_rank_is_no_load_on_any(tiered_rank, ranks):
    """Another part of one rank's process took a page between the plan and the allocation."""

    def work(rank, agree):
        world = tiered_rank(agree, (FULL,))
        in_host(world, ids(1, 2))
        if rank == 0:
            world.cache._planning._allocators = [NothingLeft(world.host.allocators["full"])]
        refused(world, ids(1, 2))
        return sizes(world)

    one, two = ranks.run(work)
    assert one == two


class NothingLeft:
    """Says that there is room, and has none."""

    def __init__(self, allocator):
        self.n_free = allocator.n_free

    def alloc(self, n):
        return None


def test_a_load_is_dropped_on_all_ranks_or_on_none(tiered_rank, ranks):
    """On one of them it was dispatched already: it was assembled sooner there."""

    def work(rank, agree):
        world = tiered_rank(agree, (FULL,))
        in_host(world, ids(1, 2))
        world.script.slow_assembly = rank == 0
        ticket = world.cache.load(find(world, ids(1, 2)).result)
        world.host.idle()
        [copy] = world.script.pending["load"]
        assert copy.dispatched == (rank == 1)
        ticket.cancel()
        assert not copy.cancelled
        for _ in range(2):
            world.cache.poll()
            world.host.idle()
        world.cache.poll()
        assert copy.ended
        return sizes(world)

    one, two = ranks.run(work)
    assert one == two


def test_a_load_asks_the_other_ranks_twice(tiered_rank):
    """For its length, and whether all have started it."""
    asked = []

    def agree(values):
        asked.append(list(values))
        return values

    world = tiered_rank(agree)
    in_host(world, *CHAIN)
    asked.clear()
    started = load(world, CHAIN[1])
    assert asked == [[16], [1]]
    world.settle()
    assert claim(world, started)
    finish(world)


def test_what_an_eviction_raises_leaves_nothing_taken(tiered):
    """Not a load's own trouble: it is raised, with the lock and all pages back."""
    world = tiered(TierSizes(PAGE, 4, 64, "insert"))
    in_host(world, ids(1, 2), ids(5, 6, 7))
    match = find(world, ids(1, 2))
    started = load(world, ids(5, 6, 7))
    world.settle()
    assert claim(world, started)
    before = sizes(world)

    def planted(component, n):
        raise MemoryError("planted")

    planning = world.cache._planning
    real, planning._evict = planning._evict, planted
    with pytest.raises(MemoryError, match="planted"):
        world.cache.load(match.result)
    planning._evict = real
    assert sizes(world) == before
    world.cache.check_integrity()
    evict(world)
    assert world.cache.reset(), "a lock is left"


def of_full_attention(tiered_rank, ranks):
    test_a_load_that_one_rank_cannot_start_is_started_on_none(tiered_rank, ranks, 0)


def of_the_window(tiered_rank, ranks):
    test_a_load_that_one_rank_cannot_start_is_started_on_none(tiered_rank, ranks, 1)


class TestFaultsOfLoadRanks(PlantedFaultTests):
    faults = (
        Fault(
            "each rank starts a load by itself",
            of_the_window,
            Replacement(LoadPlanning, "start", "agree([int(started)])", "[started]"),
        ),
        Fault(
            "what one rank started stays",
            of_the_window,
            Replacement(LoadPlanning, "start", "self._loads.withdraw(loading)", "pass"),
        ),
        Fault(
            "loads that were joined are dropped, too",
            test_a_load_that_is_joined_goes_on,
            Replacement(LoadPlanning, "start", "for loading in own:", "for loading in waits_for:"),
        ),
        Fault(
            "pages of a load that was not started are nobody's",
            of_the_window,
            Replacement(LoadPlanning, "_start_each", "self._freeing.pages(c, request.indices)", "pass"),
        ),
        Fault(
            "pages come back in another order on each rank",
            of_full_attention,
            Replacement(LoadPlanning, "_start_each", "for request in requests:", "for request in reversed(requests):"),
        ),
        Fault(
            "a load that was not started is under way",
            of_the_window,
            Replacement(Loads, "start", "self._end(operation)", "pass"),
        ),
        Fault(
            "no room on one rank is not told",
            test_no_room_after_all_on_one_rank_is_no_load_on_any,
            Replacement(LoadPlanning, "start", "= agree([int(started)])", "= agree([1]) if started else [0]"),
        ),
        Fault(
            "each rank drops a load by itself",
            test_a_load_is_dropped_on_all_ranks_or_on_none,
            Replacement(Loads, "leave", "agree([int(not loading.transfer.dispatched)])", "[not loading.transfer.dispatched]"),
        ),
        Fault(
            "what was allocated before an eviction raised is kept",
            test_what_an_eviction_raises_leaves_nothing_taken,
            Replacement(LoadPlanning, "_pages_for", "        raise", "        return None"),
        ),
    )
