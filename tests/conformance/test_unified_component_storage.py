"""Traps of storage (L3) for windows and states: keys, holes, what a restart finds of one component and not of another. One
directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.pool_model import NumpyPool
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import claim, compute, evict, finish, ids, load
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import host_len, in_storage, is_stored, lose, payload, prefetch, script_of
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_radix.insertion import Insertion
from kvcache_unified_hicache import storage_tier
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.cache import UnifiedRadixCache
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.host_tier import TreeVictims
from kvcache_unified_hicache.leftovers import Leftovers
from kvcache_unified_hicache.persists import Persists
from kvcache_unified_hicache.prefix_pages import PrefixPages
from kvcache_unified_hicache.storage.page_keys import PageKeys

SETS = {
    "S": (SWA,),
    "R": (RECURRENT,),
    "FS": (FULL, SWA),
    "FR": (FULL, RECURRENT),
    "SR": (SWA, RECURRENT),
    "FSR": (FULL, SWA, RECURRENT),
}
ALL = SETS["FSR"]
ROOM = TierSizes(PAGE, 16, 64, "insert", "evict", interval=PAGE)
INSERT = ROOM._replace(persist_on="insert")
PROMPT = ids(1, 2, 3, 4, 5, 6)

every_set = pytest.mark.parametrize("components", SETS.values(), ids=SETS)
windows_and_states = pytest.mark.parametrize("component", [SWA, RECURRENT], ids=["window", "state"])


def over(stored, components, sizes=ROOM, **changes):
    """One process after the other on a storage."""
    return partial(start, stored, components, sizes, changes)


def start(stored, components, sizes, changes, storage):
    return stored(sizes, storage, components, **changes)


def slots(world):
    """What the host has of each component."""
    return {name: len(pages) for name, pages in world.ledger.claims.resident.items()}


def fetch(world, tokens, extra_key=()):
    started = prefetch(world, tokens, extra_key)
    world.settle()
    world.verify()
    return started


def fetched_since(world, before):
    """By component, how many keys were fetched since."""
    script = script_of(world)
    names = {payload(name, PROMPT[:end]): name for name in world.host.geometries for end in range(PAGE, len(PROMPT) + 1, PAGE)}
    return Counter(names[script._payload_of[key]] for key in script.fetched[before:])


# there and back


@pytest.mark.parametrize("interval", [0, PAGE])
@every_set
def test_a_prompt_comes_back_after_a_restart(stored, components, interval):
    """From storage to the device; of a window its pages, of a state the last."""
    world = in_storage(over(stored, components, ROOM._replace(interval=interval)), PROMPT)
    started = fetch(world, PROMPT)
    assert started.ticket.ok and started.ticket.span == (0, 24)
    needed = {spec.name: {"full": 6, "swa": 2, "recurrent": 1}[spec.name] for spec in components}
    assert slots(world) == needed and len(script_of(world).fetched) == sum(needed.values())
    loaded = load(world, PROMPT)
    world.settle()
    assert claim(world, loaded)
    finish(world)


@every_set
def test_what_came_from_storage_is_not_written_again(stored, components):
    world = in_storage(over(stored, components), PROMPT)
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
    world = stored(ROOM, StorageScript(), ALL)
    compute(world, PROMPT)
    world.settle()
    evict(world)
    assert slots(world) == {"full": 6, "swa": 2, "recurrent": 6}
    world.evict_host("full", 64)
    world.settle()
    assert slots(world) == {"full": 0, "swa": 0, "recurrent": 0}
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
    world = stored(INSERT._replace(interval=0), StorageScript(), (component,))
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


# holes


@pytest.mark.parametrize(
    ("component", "lost", "expected"),
    [
        ("recurrent", [24], 20),
        ("recurrent", [24, 20, 12], 16),
        ("recurrent", [4, 8, 12, 16, 20, 24], 0),
        ("swa", [24], 20),
        ("swa", [20], 16),
        ("swa", [12, 20], 8),
        ("full", [24], 20),
        ("full", [16], 12),
    ],
)
def test_a_restart_finds_one_component_missing(stored, component, lost, expected):
    """B7, T23: every page and every state was stored; the usable prefix is the longest that is whole. What is missing is computed
    and stored again, for the next restart."""
    storage = StorageScript()
    first = start(stored, ALL, ROOM, {}, storage)
    for end in range(PAGE, len(PROMPT) + 1, PAGE):
        compute(first, PROMPT[:end])
    first.cache.close()
    world = start(stored, ALL, ROOM, {}, storage)
    lose(world, component, *(PROMPT[:end] for end in lost))
    started = fetch(world, PROMPT)
    assert started.ticket.span == (0, expected) and host_len(world, PROMPT) == expected
    if expected:
        loaded = load(world, PROMPT)
        world.settle()
        assert claim(world, loaded)
    compute(world, PROMPT)
    world.cache.close()
    again = start(stored, ALL, ROOM, {}, storage)
    fetch(again, PROMPT)
    assert host_len(again, PROMPT) == 24
    finish(again)


@windows_and_states
def test_a_hole_in_the_host_is_filled_alone(stored, component):
    """T20: what the host has is not asked for again, and the storage's pages land in the middle of known nodes."""
    world = in_storage(over(stored, (FULL, component)), PROMPT)
    fetch(world, PROMPT)
    world.evict_host(component.name, 64)
    assert host_len(world, PROMPT) == 0
    before = len(script_of(world).fetched)
    started = fetch(world, PROMPT)
    assert started.ticket.span == (0, 24) and host_len(world, PROMPT) == 24
    assert fetched_since(world, before) == {component.name: 2 if component is SWA else 1}
    finish(world)


@windows_and_states
def test_what_arrives_decides_and_not_what_was_promised(stored, component):
    """T23: a page of the window, or the state, does not come."""
    world = in_storage(over(stored, (FULL, component)), PROMPT)
    started = prefetch(world, PROMPT)
    world.turn()
    script_of(world).fates.extend([True] * 6 + [False])
    world.settle()
    assert not started.ticket.ok and host_len(world, PROMPT) == 0
    assert world.cache.size(component.name, "host").free == world.cache.size("full", "host").free == 64
    finish(world)


@pytest.mark.parametrize("components", [SETS["S"], SETS["SR"]], ids=["S", "SR"])
def test_a_part_of_the_window_that_went_meanwhile(stored, components):
    """T24: without full attention, what arrives then is of no use and leaves no empty leaf behind."""
    world = in_storage(over(stored, components), ids(1, 2), ids(1, 2, 3))
    fetch(world, ids(1, 2))
    started = prefetch(world, ids(1, 2, 3))
    world.turn()
    for spec in components:
        world.evict_host(spec.name, 64)
    world.settle()
    assert not started.ticket.ok and host_len(world, ids(1, 2, 3)) == 0
    assert all(world.cache.size(spec.name, "host").free == 64 for spec in components)
    assert isinstance(world.cache, UnifiedRadixCache) and not world.cache._tree.store.roots
    finish(world)


@windows_and_states
def test_two_prompts_join_over_a_window_or_a_state(stored, component):
    """T23: neighbouring prefixes share pages of their windows, equal ones a state; each is asked for once."""
    longer = PROMPT if component is RECURRENT else PROMPT[:20]
    world = in_storage(over(stored, (FULL, component)), PROMPT[:20], PROMPT)
    script = script_of(world)
    first, second = prefetch(world, PROMPT), prefetch(world, longer)
    world.settle()
    assert len(script.fetched) == len(set(script.fetched))
    assert first.ticket.ok and second.ticket.ok
    finish(world)


@windows_and_states
def test_waiting_prompts_take_half_of_the_host_at_most(stored, component):
    """T23: of the component that is short, here windows or states alone."""
    n = 4 if component is SWA else 2
    sizes = TierSizes(PAGE, 16, n, "insert", "evict")
    world = in_storage(over(stored, (component,), sizes), ids(1, 2), ids(3, 4), ids(5, 6))
    asked = [prefetch(world, prompt) for prompt in (ids(1, 2), ids(3, 4), ids(5, 6))]
    script_of(world).allowed = 3
    world.turn()
    script_of(world).hold_back()
    world.turn()
    assert world.cache.size(component.name, "host").in_flight == n // 2
    world.settle()
    assert all(each.ticket.done for each in asked) and asked[-1].ticket.ok
    finish(world)


# keys


@pytest.mark.parametrize("other", [(b"lora",), (b"",), (b"a", b"bc"), (b"ab", b"c")])
@every_set
def test_another_extra_key_never_hits(stored, components, other):
    """K1, K2, T19."""
    storage = StorageScript()
    first = start(stored, components, ROOM, {}, storage)
    request = RequestModel(first.checked, ids(1, 2), (b"abc",))
    assert request.admit() and request.compute(8)
    request.finish()
    first.cache.close()
    world = start(stored, components, ROOM, {}, storage)
    assert fetch(world, ids(1, 2), other).ticket.span == (0, 0) and not storage.fetched
    assert fetch(world, ids(1, 2), (b"abc",)).ticket.span == (0, 8)
    finish(world)


@every_set
def test_another_version_never_hits(stored, components):
    """K3, K5."""
    model = ModelSpec("by-value", "1", "hybrid_recurrent", components)
    storage = StorageScript()
    first = start(stored, components, ROOM, {"model": model}, storage)
    compute(first, ids(1, 2))
    first.cache.close()
    world = start(stored, components, ROOM, {"model": replace(model, model_version="2")}, storage)
    assert fetch(world, ids(1, 2)).ticket.span == (0, 0) and not storage.fetched
    again = start(stored, components, ROOM, {"model": model}, storage)
    assert fetch(again, ids(1, 2)).ticket.span == (0, 8)


def test_another_component_never_hits(stored):
    """K3: pools of one identity, of pages of one size; the storage refuses two contents under one key."""
    page = stored(ROOM, StorageScript(), ALL).host.pools["full"].host_struct()
    pools = {spec.name: NumpyPool("same", page) for spec in ALL}
    world = in_storage(over(stored, ALL, pools=pools), ids(1, 2))
    names = {payload(spec.name, ids(1, 2)) for spec in ALL}
    keys = {key for key, kept in script_of(world)._payload_of.items() if kept in names}
    assert len(keys) == len(ALL)
    fetch(world, ids(1, 2))
    assert host_len(world, ids(1, 2)) == 8
    finish(world)


@every_set
def test_one_key_for_every_way_of_chunking(stored, components):
    """K4."""
    keys = []
    for chunk in (PAGE, 3 * PAGE, 7):
        world = stored(INSERT._replace(interval=0), StorageScript(), components)
        request = RequestModel(world.checked, PROMPT)
        assert request.admit()
        while request.to_compute:
            assert request.compute(chunk)
            request.chunk_done()
        request.finish()
        world.cache.close()
        keys.append({kept: key for key, kept in script_of(world)._payload_of.items()})
        last = {payload(spec.name, PROMPT) for spec in components}
        assert last <= keys[-1].keys()
    for first, second in pairwise(keys):
        assert all(first[kept] == second[kept] for kept in first.keys() & second.keys())


@windows_and_states
def test_a_spoilt_page_is_a_miss_and_repaired(stored, component):
    """B1, T19: the newest page of the window, or the newest state, has a flipped byte, or full attention's content."""
    for spoil in (flip, exchange):
        world = in_storage(over(stored, (FULL, component)), PROMPT[:12], PROMPT)
        script = script_of(world)
        bad = spoil(script, payload(component.name, PROMPT), payload("full", PROMPT))
        fetch(world, PROMPT)
        assert script.bad == bad
        assert host_len(world, PROMPT) == 0
        fetch(world, PROMPT)
        assert host_len(world, PROMPT) == (20 if component is RECURRENT and bad == 1 else 12 if component is SWA else 20)
        compute(world, PROMPT)
        world.settle()
        world.persist(5.0)
        assert script.has_now(payload(component.name, PROMPT))
        finish(world)


def key_of(script, content):
    [key] = [key for key, kept in script._payload_of.items() if kept == content]
    return key


def flip(script, content, other):
    """One byte of a page is another."""
    key = key_of(script, content)
    value = bytearray(script.pages[key])
    value[-1] ^= 1
    script.pages[key] = bytes(value)
    return 1


def exchange(script, content, other):
    """Two pages lie under each other's key."""
    a, b = key_of(script, content), key_of(script, other)
    script.pages[a], script.pages[b] = script.pages[b], script.pages[a]
    return 2


# policy


@every_set
def test_a_miss_evicts_nothing(stored, components):
    """P6."""
    world = stored(TierSizes(PAGE, 16, 4, "insert", "evict"), StorageScript(), components)
    compute(world, ids(1, 2, 3, 4))
    world.settle()
    before = slots(world)
    fetch(world, ids(7, 8))
    assert slots(world) == before and host_len(world, ids(1, 2, 3, 4)) == 16
    finish(world)


@every_set
def test_a_reset_makes_every_arrival_a_stranger(stored, components):
    """S9."""
    world = in_storage(over(stored, components), PROMPT)
    started = prefetch(world, PROMPT)
    world.turn()
    assert world.checked.reset()
    assert started.ticket.done and not started.ticket.ok
    assert all(world.cache.size(spec.name, "host").in_flight for spec in components)
    world.verify()
    world.settle()
    assert all(world.cache.size(spec.name, "host").free == 64 for spec in components)
    assert fetch(world, PROMPT).ticket.ok
    finish(world)


def of_window(test, *more):
    """A parametrised test for windows alone."""
    return lambda stored: test(stored, SWA, *more)


def of_state(test, *more):
    return lambda stored: test(stored, RECURRENT, *more)


def of(name, test, *more):
    return lambda stored: test(stored, SETS[name], *more)


RESTART = test_a_restart_finds_one_component_missing
AT_THE_END = test_what_is_only_in_memory_is_stored_at_the_end
ARRIVES = test_what_arrives_decides_and_not_what_was_promised
REFUSED = test_a_refused_page_comes_again
FULL_DECIDES = Replacement(
    PrefixPages,
    "usable",
    "longest_usable(self._geometries, self.ends[:n], [flags[:n] for flags in there])",
    "longest_usable(self._geometries[:1], self.ends[:n], [flags[:n] for flags in there[:1]])",
)
PROMISED = Replacement(
    Attaching, "attach", "length = pages.usable(either(pages.resident(), arrived), fetch.length)", "length = fetch.length"
)
NEVER_AGAIN = Replacement(
    Persists,
    "_send",
    'return UNAVAILABLE if self._guard.refuses("write") else TOO_MANY_BYTES',
    "marks.set(places, STORED); return TOO_MANY_BYTES",
)


class TestFaultsOfComponentStorage(PlantedFaultTests):
    faults = (
        Fault(
            "a state is stored under the digest of its node's start",
            of("R", test_a_prompt_comes_back_after_a_restart, 0),
            Replacement(Persists, "start", "digests = digests[-DIGEST_BYTES:]", "digests = digests[:DIGEST_BYTES]"),
        ),
        Fault(
            "all of a window's pages are fetched",
            of("FS", test_a_prompt_comes_back_after_a_restart, PAGE),
            Replacement(PrefixPages, "needed", "first_needed(length)", "first_needed(0)"),
        ),
        Fault(
            "windows that were fetched are written again",
            of("S", test_what_came_from_storage_is_not_written_again),
            Replacement(Attaching, "attach", "self._mark(fetch, arrived, length)", "pass"),
        ),
        Fault(
            "states that were fetched are written again",
            of("R", test_what_came_from_storage_is_not_written_again),
            Replacement(Attaching, "attach", "self._mark(fetch, arrived, length)", "pass"),
        ),
        Fault(
            "T25: persist stores full attention alone",
            of("FSR", AT_THE_END, 64),
            Replacement(Leftovers, "_unstored", "enumerate(node.cells)", "enumerate(node.cells[:1])"),
        ),
        Fault(
            "P5: a window larger than L2 is given up",
            of("S", AT_THE_END, 1),
            Replacement(Leftovers, "_pieces", "node.end - node.start > most", "False"),
        ),
        Fault(
            "P5: states that only L1 has are given up",
            of("R", AT_THE_END, 1),
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
            Replacement(TreeVictims, "take", "self._write_back(victim, c)", "pass"),
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
        Fault("B7: a missing state is not noticed", lambda stored: RESTART(stored, "recurrent", [24], 20), FULL_DECIDES),
        Fault("B7: a missing window is not noticed", lambda stored: RESTART(stored, "swa", [20], 16), FULL_DECIDES),
        Fault(
            "T20: what fills a hole of a window is a duplicate",
            of_window(test_a_hole_in_the_host_is_filled_alone),
            Replacement(Insertion, "_existing", "if not self._has(end.cells[c]):", "if False:"),
        ),
        Fault(
            "T20: what fills the place of a state is a duplicate",
            of_state(test_a_hole_in_the_host_is_filled_alone),
            Replacement(Insertion, "_existing", "if not self._has(end.cells[c]):", "if False:"),
        ),
        Fault("T23: a window is as long as was promised", of_window(ARRIVES), PROMISED),
        Fault("T23: a state is there because it was promised", of_state(ARRIVES), PROMISED),
        Fault(
            "T24: the window is what it was when the fetch was planned",
            of("S", test_a_part_of_the_window_that_went_meanwhile),
            Replacement(Attaching, "attach", "either(pages.resident(), arrived)", "[[True] * pages.n for _ in arrived]"),
        ),
        Fault(
            "T23: windows are fetched twice",
            of_window(test_two_prompts_join_over_a_window_or_a_state),
            Replacement(Fetches, "_missing", "and key not in self._coming", ""),
        ),
        Fault(
            "T23: a state is fetched twice",
            of_state(test_two_prompts_join_over_a_window_or_a_state),
            Replacement(Fetches, "_missing", "and key not in self._coming", ""),
        ),
        Fault(
            "T23: no bound on waiting windows",
            of_window(test_waiting_prompts_take_half_of_the_host_at_most),
            Replacement(Fetches, "_bring", "self._host.total(c) // 2", "self._host.total(c)"),
        ),
        Fault(
            "T23: no bound on waiting states",
            of_state(test_waiting_prompts_take_half_of_the_host_at_most),
            Replacement(Fetches, "_bring", "self._host.total(c) // 2", "self._host.total(c)"),
        ),
        Fault(
            "K1: a window's keys without the extra key",
            of("S", test_another_extra_key_never_hits, (b"lora",)),
            Replacement(PageKeys, "root", "frame(*check_extra_key(extra_key))", "b''"),
        ),
        Fault(
            "K1: a state's keys without the extra key",
            of("R", test_another_extra_key_never_hits, (b"lora",)),
            Replacement(PageKeys, "root", "frame(*check_extra_key(extra_key))", "b''"),
        ),
        Fault(
            "K5: a state's keys without the version",
            of("R", test_another_version_never_hits),
            Replacement(PageKeys, "__init__", "_text(model.model_version), ", ""),
        ),
        Fault(
            "K3: keys without the component",
            test_another_component_never_hits,
            Replacement(storage_tier, "component_identity", "frame(_text(name), pool,", "frame(pool,"),
        ),
        Fault(
            "K4: the digest of a chunk's start for all of it",
            of("FSR", test_one_key_for_every_way_of_chunking),
            Replacement(PageKeys, "chain", "sha.update(digest + data", "sha.update(parent + data"),
        ),
        Fault(
            "P6: a miss makes room",
            of("SR", test_a_miss_evicts_nothing),
            Replacement(Fetches, "start", "self._pending.append(fetch)", "self._pending.append(fetch); self._host.alloc(0, 1)"),
        ),
        Fault(
            "S9: a reset lets late windows and states in",
            of("SR", test_a_reset_makes_every_arrival_a_stranger),
            Replacement(Fetches, "forget", "fetch.forgotten = True", "pass"),
        ),
    )
