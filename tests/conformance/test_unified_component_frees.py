"""What a call may free on the device. Room there is made by `evict`, of the component that was asked, and by `load`, of those it
brings; every other free needs a reason: the full attention that the page stands on left memory in the same call, or left the
device with it. Each test asks for one call in a world where the cache has much that it must keep, and the kit judges it. Each
fault lets that call take one page more, of the cache's own and not locked.

The reasons themselves are reached in `test_unified_component_room`.
"""

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import ALL, STORED_ROOM, given, of_state, of_window, windows_and_states
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import prefetch
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.cache import Tier
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.ticket import LoadTicket

ROOM = TierSizes(PAGE, 16, 32, "insert")
WRITE_BACK = ROOM._replace(backup_on="evict")
KEPT = (ids(1, 2), ids(3, 4))


def with_prompts(world):
    """The cache keeps two prompts."""
    for prompt in KEPT:
        compute(world, prompt)
    return world


@windows_and_states
@pytest.mark.parametrize("sizes", [ROOM, WRITE_BACK], ids=["insert", "evict"])
def test_an_insert_frees_nothing_that_is_of_use(tiered, sizes, component):
    """Whether pages have copies in the host already or not."""
    world = with_prompts(tiered(sizes, (FULL, component)))
    world.settle()
    compute(world, ids(5, 6))
    finish(world)


@pytest.mark.parametrize("components", [(FULL,), (FULL, SWA)], ids=["F", "FS"])
def test_an_insert_frees_nothing_whose_copy_runs(tiered, components):
    """It is on its way to the host, and so not lost; and yet it was of use where it was."""
    world = tiered(ROOM, components)
    world.script.hold_back()
    with_prompts(world)
    compute(world, ids(5, 6))
    world.settle()
    finish(world)


@windows_and_states
def test_a_poll_frees_nothing_that_is_of_use(tiered, component):
    world = with_prompts(tiered(ROOM, (FULL, component)))
    for _ in range(3):
        world.turn()
        world.verify()
    finish(world)


@windows_and_states
def test_with_full_attention_goes_what_is_beside_it(tiered, component):
    """CONTRACT 6: the others on its node, and nothing else."""
    world = with_prompts(tiered(ROOM, (FULL, component)))
    world.settle()
    before = set(world.checked.model.resident(component.name).values())
    world.checked.evict("full", 1)
    world.verify()
    assert before - set(world.checked.model.resident(component.name).values())
    finish(world)


@windows_and_states
def test_a_window_or_a_state_goes_alone(tiered, component):
    world = with_prompts(tiered(ROOM, (FULL, component)))
    world.settle()
    world.checked.evict(component.name, 1)
    finish(world)


@windows_and_states
def test_an_eviction_in_the_host_takes_nothing_from_the_device(tiered, component):
    """What it drops there is on the device still, or is no start of what is."""
    world = with_prompts(tiered(ROOM, (FULL, component)))
    world.settle()
    for name in ("full", component.name):
        assert world.evict_host(name, 1)
        world.verify()
    finish(world)


@windows_and_states
def test_a_load_makes_room_for_what_it_brings(tiered, component):
    """It brings full attention alone: the device has the rest still."""
    world = tiered(ROOM, (FULL, component))
    in_host(world, ids(7, 8))
    with_prompts(world)
    world.script.fates.extend([False, True])
    first = load(world, ids(7, 8))
    world.settle()
    assert not claim(world, first)
    taken = world.checked.alloc("full", world.cache.size("full").free - 1)
    kept = set(world.checked.model.resident(component.name).values())
    second = load(world, ids(7, 8))
    assert {copy.component for copy in second.own} == {"full"}
    # One page was wanting, and the window or state beside it went with it.
    assert kept - set(world.checked.model.resident(component.name).values())
    world.settle()
    assert claim(world, second)
    world.checked.free("full", taken)
    finish(world)


@windows_and_states
def test_a_load_that_is_cancelled_gives_back_what_it_took(tiered, component):
    world = tiered(ROOM, (FULL, component))
    in_host(world, ids(7, 8))
    with_prompts(world)
    world.script.hold_back()
    world.cancel(load(world, ids(7, 8)))
    world.verify()
    finish(world)


def test_a_prefetch_frees_nothing_that_is_of_use(stored):
    world = with_prompts(stored(STORED_ROOM, StorageScript(), ALL))
    prefetch(world, ids(7, 8))
    world.settle()
    finish(world)


def test_persisting_frees_nothing_that_is_of_use(stored):
    world = with_prompts(stored(STORED_ROOM, StorageScript(), ALL))
    world.persist(5.0)
    world.verify()
    finish(world)


def test_a_load_cut_short_onto_what_another_brings(tiered):
    """T8: states alone, and room for one. The second load wants a longer prefix and gets the one that is coming; it waits for it,
    and when the first leaves it is not dropped."""
    world = tiered(ROOM, (RECURRENT,))
    for tokens in (ids(1), ids(1, 2)):
        compute(world, tokens)
        world.settle()
    evict(world, "recurrent")
    taken = world.checked.alloc("recurrent", world.cache.size("recurrent").free - 1)
    world.script.hold_back()
    first = load(world, ids(1))
    assert find(world, ids(1, 2)).result[1:] == (0, 8, 8)
    second = load(world, ids(1, 2))
    assert second.held.length == 4 and second.joined == first.own and not second.own
    world.cancel(first)
    world.settle()
    assert claim(world, second)
    assert world.ledger.events["load cut short"] == 1
    world.checked.free("recurrent", taken)
    finish(world)


# faults: one page more


def one_more(cache, component):
    """What the cache would take next, if it had to."""
    cache._freeing.release(cache._tree.evict(component, 1))


def takes(method, component):
    """`method` of the cache frees one page of `component` besides, where it had one before."""

    def plant(monkeypatch):
        real = getattr(UnifiedRadixCache, method)

        def freeing(self, *args, **options):
            had = self.size(component).evictable
            result = real(self, *args, **options)
            if had:
                one_more(self, component)
            return result

        monkeypatch.setattr(UnifiedRadixCache, method, freeing)

    return plant


def evicts_twice(monkeypatch):
    """Whole prompts, of which the host has copies: more than one victim can have been."""
    real = UnifiedRadixCache.evict

    def twice(self, component, n, tier: Tier = "device"):
        return real(self, component, n, tier) + real(self, component, 3, tier)

    monkeypatch.setattr(UnifiedRadixCache, "evict", twice)


def cancel_takes(component):
    """`LoadTicket.cancel` does."""

    def plant(monkeypatch):
        caches = []
        real, cancel = UnifiedRadixCache.load, LoadTicket.cancel

        def loading(self, match):
            caches.append(self)
            return real(self, match)

        def freeing(self):
            cancel(self)
            one_more(caches[-1], component)

        monkeypatch.setattr(UnifiedRadixCache, "load", loading)
        monkeypatch.setattr(LoadTicket, "cancel", freeing)

    return plant


INSERT = test_an_insert_frees_nothing_that_is_of_use
RUNNING = test_an_insert_frees_nothing_whose_copy_runs
POLL = test_a_poll_frees_nothing_that_is_of_use
EVICT = test_with_full_attention_goes_what_is_beside_it
ALONE = test_a_window_or_a_state_goes_alone
EVICT_HOST = test_an_eviction_in_the_host_takes_nothing_from_the_device
LOAD = test_a_load_makes_room_for_what_it_brings
CANCEL = test_a_load_that_is_cancelled_gives_back_what_it_took
PREFETCH = test_a_prefetch_frees_nothing_that_is_of_use
PERSIST = test_persisting_frees_nothing_that_is_of_use


class TestFaultsOfFrees(PlantedFaultTests):
    faults = (
        Fault(
            "insert evicts full attention that has no copy, and a window", given(INSERT, WRITE_BACK, SWA), takes("insert", "full")
        ),
        Fault(
            "insert evicts full attention that has no copy, and a state",
            given(INSERT, WRITE_BACK, RECURRENT),
            takes("insert", "full"),
        ),
        Fault("insert evicts a window that has a copy", given(INSERT, ROOM, SWA), takes("insert", "swa")),
        Fault("insert evicts a state that has no copy", given(INSERT, WRITE_BACK, RECURRENT), takes("insert", "recurrent")),
        Fault("insert evicts full attention whose copy runs", given(RUNNING, (FULL,)), takes("insert", "full")),
        Fault("insert evicts full attention and a window whose copies run", given(RUNNING, (FULL, SWA)), takes("insert", "full")),
        Fault("an eviction takes a second prompt that has copies", of_window(EVICT), evicts_twice),
        Fault("poll evicts full attention", of_window(POLL), takes("poll", "full")),
        Fault("poll evicts a window", of_window(POLL), takes("poll", "swa")),
        Fault("poll evicts a state", of_state(POLL), takes("poll", "recurrent")),
        Fault("evict takes a window besides", of_window(EVICT), takes("evict", "swa")),
        Fault("evict takes a state besides", of_state(EVICT), takes("evict", "recurrent")),
        Fault("evict of a window takes full attention besides", of_window(ALONE), takes("evict", "full")),
        Fault("evict in the host takes a window of the device", of_window(EVICT_HOST), takes("evict", "swa")),
        Fault("evict in the host takes full attention of the device", of_state(EVICT_HOST), takes("evict", "full")),
        Fault("load evicts a window, and brings none", of_window(LOAD), takes("load", "swa")),
        Fault("load evicts a state, and brings none", of_state(LOAD), takes("load", "recurrent")),
        Fault("cancel evicts full attention", of_window(CANCEL), cancel_takes("full")),
        Fault("cancel evicts a window", of_window(CANCEL), cancel_takes("swa")),
        Fault("prefetch evicts full attention", PREFETCH, takes("prefetch", "full")),
        Fault("prefetch evicts a window", PREFETCH, takes("prefetch", "swa")),
        Fault("persist evicts full attention", PERSIST, takes("persist", "full")),
        Fault("persist evicts a state", PERSIST, takes("persist", "recurrent")),
    )
