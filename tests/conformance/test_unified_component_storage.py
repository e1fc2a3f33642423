"""Windows and states on their way to storage (L3) and back: of every component what was computed is stored, once, whatever memory
has room for. One directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import (
    ALL,
    PROMPT,
    STORED_ROOM,
    every_set,
    fetch,
    host_units,
    of_set,
    of_state,
    of_window,
    windows_and_states,
)
from kvcache_conformance.geometries import SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, evict, finish, ids, load
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import INSERT, after_restart, host_len, is_stored, script_of
from kvcache_conformance.tier_steps import TierSizes
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.host_tier import TreeVictims
from kvcache_unified_hicache.leftovers import Leftovers
from kvcache_unified_hicache.persists import Persists
from kvcache_unified_hicache.prefix_pages import PrefixPages


@pytest.mark.parametrize("interval", [0, PAGE])
@every_set
def test_a_prompt_comes_back_after_a_restart(stored, components, interval):
    """From storage to the device; of a window its pages, of a state the last."""
    world = after_restart(stored, PROMPT, sizes=STORED_ROOM._replace(interval=interval), components=components)
    started = fetch(world, PROMPT)
    assert started.ticket.ok and started.ticket.span == (0, 24)
    needed = {spec.name: {"full": 6, "swa": 2, "recurrent": 1}[spec.name] for spec in components}
    assert host_units(world) == needed and len(script_of(world).fetched) == sum(needed.values())
    loaded = load(world, PROMPT)
    world.settle()
    assert claim(world, loaded)
    finish(world)


@every_set
def test_what_came_from_storage_is_not_written_again(stored, components):
    world = after_restart(stored, PROMPT, sizes=STORED_ROOM, components=components)
    fetch(world, PROMPT)
    assert world.persist(1.0).stored == 0
    for spec in components:
        world.evict_host(spec.name, 64)
    assert script_of(world).quiet and world.cache.counters.storage_written_tokens == 0
    finish(world)


@pytest.mark.parametrize("slots_each", [64, 3, 1])
@every_set
def test_what_is_only_in_memory_is_stored_at_the_end(stored, components, slots_each):
    """T25, P5: with an L2 smaller than a window, of one page, or of one state."""
    world = stored(TierSizes(PAGE, 16, slots_each, "evict", "evict"), StorageScript(), components)
    compute(world, ids(1, 2, 3))
    compute(world, ids(7, 8))
    world.cache.close()
    for prompt in (ids(1, 2, 3), ids(7, 8)):
        for name, n in (("full", len(prompt) // PAGE), ("swa", 2), ("recurrent", 1)):
            if name in world.host.geometries:
                assert all(is_stored(world, name, prompt[: len(prompt) - i * PAGE]) for i in range(n)), (name, prompt)


@windows_and_states
def test_a_victim_of_the_host_goes_to_storage_alone(stored, component):
    """P3, B4: its slot is given out again before the storage has written what was in it."""
    world = stored(TierSizes(PAGE, 16, 2, "evict", "evict"), StorageScript(), (component,))
    compute(world, ids(1, 2))
    evict(world, component.name)
    world.settle()
    script_of(world).hold_back()
    for prompt in (ids(3, 4), ids(5, 6)):
        compute(world, prompt)
        evict(world, component.name)
        world.turn()
    world.settle()
    for prompt in (ids(1, 2), ids(3, 4)):
        assert is_stored(world, component.name, prompt) or host_len(world, prompt) == 8
    assert is_stored(world, component.name, ids(1, 2))
    finish(world)


def test_what_a_dropped_start_takes_along_is_stored_before(stored):
    """P5: full attention leaves the host, and with it what windows and states have there."""
    world = stored(STORED_ROOM, StorageScript(), ALL)
    compute(world, PROMPT)
    world.settle()
    evict(world)
    assert host_units(world) == {"full": 6, "swa": 2, "recurrent": 6}
    world.evict_host("full", 64)
    world.settle()
    assert host_units(world) == {"full": 0, "swa": 0, "recurrent": 0}
    for name, tokens in (
        ("full", PROMPT),
        ("swa", PROMPT),
        ("swa", PROMPT[:20]),
        ("recurrent", PROMPT),
        ("recurrent", PROMPT[:8]),
    ):
        assert is_stored(world, name, tokens)
    finish(world)


@windows_and_states
def test_a_refused_page_comes_again(stored, component):
    """T21, S10: counted while there is no room for it, a state as one."""
    world = stored(INSERT, StorageScript(), (component,))
    script_of(world).refusing = True
    compute(world, ids(1, 2))
    world.turn()
    world.turn()
    assert world.cache.counters.postponed["too many bytes in flight to L3"] == (8 if component is SWA else 1)
    script_of(world).let_all_through()
    evict(world, component.name)
    world.evict_host(component.name, 64)
    world.settle()
    assert is_stored(world, component.name, ids(1, 2))
    finish(world)


AT_THE_END = test_what_is_only_in_memory_is_stored_at_the_end
REFUSED = test_a_refused_page_comes_again
NEVER_AGAIN = Replacement(
    Persists,
    "_send",
    'return Reasons.UNAVAILABLE if self._guard.refuses("write") else Reasons.TOO_MANY_BYTES_TO_L3',
    "marks.set(places, STORED); return Reasons.TOO_MANY_BYTES_TO_L3",
)


class TestFaultsOfComponentStorage(PlantedFaultTests):
    faults = (
        Fault(
            "a state is stored under the digest of its node's start",
            of_set("R", test_a_prompt_comes_back_after_a_restart, 0),
            Replacement(Persists, "start", "digests = digests[-DIGEST_BYTES:]", "digests = digests[:DIGEST_BYTES]"),
        ),
        Fault(
            "all of a window's pages are fetched",
            of_set("FS", test_a_prompt_comes_back_after_a_restart, PAGE),
            Replacement(PrefixPages, "needed", "first_needed(length)", "first_needed(0)"),
        ),
        Fault(
            "windows that were fetched are written again",
            of_set("S", test_what_came_from_storage_is_not_written_again),
            Replacement(Attaching, "attach", "self._mark(fetch, arrived, length)", "pass"),
        ),
        Fault(
            "states that were fetched are written again",
            of_set("R", test_what_came_from_storage_is_not_written_again),
            Replacement(Attaching, "attach", "self._mark(fetch, arrived, length)", "pass"),
        ),
        Fault(
            "T25: persist stores full attention alone",
            of_set("FSR", AT_THE_END, 64),
            Replacement(Leftovers, "_unstored", "enumerate(node.cells)", "enumerate(node.cells[:1])"),
        ),
        Fault(
            "P5: a window larger than L2 is given up",
            of_set("S", AT_THE_END, 1),
            Replacement(Leftovers, "_pieces", "node.end - node.start > most", "False"),
        ),
        Fault(
            "P5: states that only L1 has are given up",
            of_set("R", AT_THE_END, 1),
            Replacement(Leftovers, "_copy", "self._backups.start(node, c)", "False"),
        ),
        Fault(
            "P5: what goes with the start of a prefix is lost",
            test_what_a_dropped_start_takes_along_is_stored_before,
            Replacement(TreeVictims, "take", "self._take_all(victim, self._write_back, reclaimed)", "pass"),
        ),
        Fault(
            "P3: a window that leaves the host is not stored",
            of_window(test_a_victim_of_the_host_goes_to_storage_alone),
            Replacement(TreeVictims, "take", "self._write_back(victim, c, victim.cells[c].device is None)", "pass"),
        ),
        Fault(
            "B4: a state is read when the write begins",
            of_state(test_a_victim_of_the_host_goes_to_storage_alone),
            Replacement(
                Persists,
                "_send",
                "_sealed(frame, keys, captured)",
                "lambda: _sealed(frame, keys, self._page_bytes.capture(c, slots[rows]))()",
            ),
        ),
        Fault("T21: a refused window is never tried again", of_window(REFUSED), NEVER_AGAIN),
        Fault("T21: a refused state is never tried again", of_state(REFUSED), NEVER_AGAIN),
        Fault(
            "S10: a refused state counts as its tokens",
            of_state(REFUSED),
            Replacement(
                Persists,
                "_tokens",
                "1 if self._store.geometries[c].at_node_end else self._store.page_size",
                "self._store.page_size",
            ),
        ),
    )
