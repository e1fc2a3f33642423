"""Accounts and eviction of windows and states in two tiers: every page has one owner, and exactly what is asked of one component
goes, in the order of use. One directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import ROOM, every_set, of_set, of_state, of_window, windows_and_states
from kvcache_conformance.geometries import FULL, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_radix import trimming
from kvcache_radix.store import NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.loads import Loads

# accounts


@windows_and_states
def test_every_page_is_counted_once_in_every_state(tiered, component):
    """L1: absent, D+w, DH, H, locked H, H+l, DH locked, and back; full attention's own numbers are its own."""
    world = tiered(TierSizes(PAGE, 8, 8, "insert"), (FULL, component))
    n, name = 2 if component is SWA else 1, component.name

    def sizes():
        world.verify()
        return tuple(world.cache.size(name)), tuple(world.cache.size(name, "host"))

    world.script.hold_back()
    compute(world, ids(1, 2))
    assert sizes() == ((8 - n, n, 0, 0, 0, 8), (8 - n, 0, 0, n, 0, 8))
    world.settle()
    assert sizes() == ((8 - n, n, 0, 0, 0, 8), (8 - n, n, 0, 0, 0, 8))
    evict(world, name)
    assert sizes() == ((8, 0, 0, 0, 0, 8), (8 - n, n, 0, 0, 0, 8))
    assert world.cache.size("full").evictable == 2
    world.script.hold_back()
    started = load(world, ids(1, 2))
    mine = world.checked.alloc(name, 3)
    assert sizes() == ((5 - n, 0, 0, n, 3, 8), (8 - n, 0, n, 0, 0, 8))
    world.settle()
    assert sizes() == ((5 - n, 0, n, 0, 3, 8), (8 - n, n, 0, 0, 0, 8))
    held = world.claim(started)
    world.checked.unlock(held)
    world.checked.free(name, mine)
    assert sizes() == ((8 - n, n, 0, 0, 0, 8), (8 - n, n, 0, 0, 0, 8))
    finish(world)


@windows_and_states
def test_a_copy_into_a_pinned_host_is_skipped_at_once(tiered, component):
    """L9: slots that a load reads from are no victims; what is skipped is counted, a state as one."""
    n = 2 if component is SWA else 1
    world = tiered(TierSizes(PAGE, 8, n, "insert"), (component,))
    in_host(world, ids(1, 2))
    world.script.hold_back()
    started = load(world, ids(1, 2))
    before = world.cache.counters.postponed["no room in L2"]
    compute(world, ids(3, 4))
    assert world.cache.counters.postponed["no room in L2"] == before + (8 if component is SWA else 1)
    assert not world.script.pending["write"]
    world.settle()
    world.cancel(started)
    finish(world)


# eviction


PROMPTS = {first: ids(first, first + 1) for first in (1, 11, 21, 31)}


def order_of_going(world, name, tier):
    """The prompts, by their first page number, in the order in which their last page or state goes, one unit at a time."""
    order = []
    while len(order) < len(PROMPTS):
        if tier == "host":
            world.evict_host(name, 1)
        else:
            world.checked.evict(name, 1)
        world.verify()
        pages = world.ledger.claims.resident[name] if tier == "host" else world.checked.model.resident(name).values()
        known = {prefix for _, prefix in pages}
        order += [n for n, tokens in PROMPTS.items() if n not in order and np.asarray(tokens, np.int32).tobytes() not in known]
    return order


@pytest.mark.parametrize("tier", ["device", "host"])
@windows_and_states
def test_the_least_recently_used_goes_first(tiered, component, tier):
    """P1: a hit counts as use, a match does not; of one prefix the end goes first."""
    world = tiered(ROOM, (FULL, component))
    for tokens in PROMPTS.values():
        compute(world, tokens)
    world.settle()
    held = world.checked.lock(find(world, ids(11, 12)))
    world.checked.unlock(held)
    find(world, ids(1, 2))
    assert order_of_going(world, component.name, tier) == [1, 21, 31, 11]
    finish(world)


@windows_and_states
def test_exactly_what_is_asked_is_freed_and_nothing_else(tiered, component):
    """P2: a window's victim is trimmed; full attention keeps all of its pages."""
    world = tiered(ROOM, (FULL, component))
    for first in (1, 11):
        compute(world, ids(first, first + 1))
    world.settle()
    n = world.cache.size(component.name).evictable
    assert world.checked.evict(component.name, n - 1) == n - 1
    assert world.cache.size(component.name).evictable == 1
    assert world.cache.size("full").evictable == 4
    finish(world)


@windows_and_states
def test_what_was_locked_when_everything_went_is_queued_again(tiered, component):
    """T6, in both tiers."""
    world = tiered(ROOM, (FULL, component))
    compute(world, ids(1, 2))
    world.settle()
    n = world.cache.size(component.name).evictable
    held = world.checked.lock(find(world, ids(1, 2)))
    assert world.checked.evict(component.name, 64) == 0
    world.checked.unlock(held)
    world.verify()
    assert world.checked.evict(component.name, 64) == n
    assert world.evict_host(component.name, 64) == n
    finish(world)


@every_set
def test_roots_of_salts_go_with_their_last_page(tiered, components):
    """T17, T18: in whichever order the tiers and the components lose it."""
    world = tiered(ROOM, components)
    for salt in (b"a", b"b"):
        request = RequestModel(world.checked, ids(1, 2, 3), (salt,))
        assert request.admit() and request.compute(12)
        request.finish()
    world.settle()
    for spec in components:
        world.evict_host(spec.name, 64)
        evict(world, spec.name)
    world.settle()
    for spec in components:
        world.evict_host(spec.name, 64)
    world.verify()
    assert not world.cache._tree.store.roots
    finish(world)


@every_set
def test_a_reset_under_copies_in_both_directions(tiered, components):
    """T10, S9: of every component."""
    world = tiered(ROOM, components)
    in_host(world, ids(1, 2))
    started = load(world, ids(1, 2))
    world.host.idle()
    world.cancel(started)
    world.script.hold_back()
    compute(world, ids(3, 4))
    assert world.checked.reset()
    world.verify()
    for spec in components:
        assert world.cache.size(spec.name).in_flight and world.cache.size(spec.name, "host").in_flight
    world.settle()
    for spec in components:
        assert (world.cache.size(spec.name).free, world.cache.size(spec.name, "host").free) == (16, 64)
    compute(world, ids(1, 2))
    finish(world)


LRU = test_the_least_recently_used_goes_first
COUNTED = test_every_page_is_counted_once_in_every_state


class TestFaultsOfComponentAccounts(PlantedFaultTests):
    faults = (
        Fault(
            "L1: what a window's loads own counts as the requests'",
            of_window(COUNTED),
            Replacement(UnifiedRadixCache, "size", "0 if self._host is None else self._host.loads.in_flight[c]", "0"),
        ),
        Fault(
            "L1: a state's copy has no owner",
            of_state(COUNTED),
            Replacement(Backups, "start", "self.in_flight[c] += n", "pass"),
        ),
        Fault(
            "L1: in flight is counted for the first component",
            of_state(COUNTED),
            Replacement(Loads, "start", "self.in_flight[c] += len(destination)", "self.in_flight[0] += len(destination)"),
        ),
        Fault(
            "L9: a skipped state is not counted",
            of_state(test_a_copy_into_a_pinned_host_is_skipped_at_once),
            Replacement(Backups, "_skip", "counter[reason] += self._tokens(node, c)", "pass"),
        ),
        Fault(
            "L9: a skipped window is not counted",
            of_window(test_a_copy_into_a_pinned_host_is_skipped_at_once),
            Replacement(Backups, "_skip", "counter[reason] += self._tokens(node, c)", "pass"),
        ),
        Fault(
            "P1: a hit is no use of the window",
            of_window(LRU, "host"),
            Replacement(RadixTree, "_pin_path", "cell.clock = clock", "pass"),
        ),
        Fault(
            "P1: a hit is no use of the state",
            of_state(LRU, "device"),
            Replacement(RadixTree, "_pin_path", "cell.clock = clock", "pass"),
        ),
        Fault(
            "P2: a window goes whole",
            of_window(test_exactly_what_is_asked_is_freed_and_nothing_else),
            Replacement(trimming, "trim", "if len(data) <= n * INDEX_BYTES or", "if True or"),
        ),
        Fault(
            "P2: a state takes full attention along",
            of_state(test_exactly_what_is_asked_is_freed_and_nothing_else),
            Replacement(NodeStore, "demote", "if c == self.closed:", "if True:"),
        ),
        Fault(
            "T6: an unlocked window is not queued again",
            of_window(test_what_was_locked_when_everything_went_is_queued_again),
            Replacement(NodeStore, "unpin", "self.offer(node, c)", "pass"),
        ),
        Fault(
            "T6: an unlocked state is not queued again",
            of_state(test_what_was_locked_when_everything_went_is_queued_again),
            Replacement(NodeStore, "unpin", "self.offer(node, c)", "pass"),
        ),
        Fault(
            "T18: only the last node of a window is pruned",
            of_set("S", test_roots_of_salts_go_with_their_last_page),
            Replacement(NodeStore, "settle", "node = above", "break"),
        ),
        Fault(
            "T18: empty roots stay",
            of_set("R", test_roots_of_salts_go_with_their_last_page),
            Replacement(NodeStore, "drop", "if not top.children and isinstance(top, Root):", "if False:"),
        ),
        Fault(
            "T10: a reset frees what copies of states are on their way to",
            of_set("R", test_a_reset_under_copies_in_both_directions),
            Replacement(
                UnifiedRadixCache,
                "reset",
                "self._freeing.release(reclaimed)",
                "self._freeing.release(reclaimed); [self._freeing.slots(o.c, o.destination) for o in self._host.backups.running]",
            ),
        ),
    )
