"""The keys of windows and states in storage (L3), and pages that are not what their key says. One directed test each, and the
faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents of each component; a test asserts what is special to
it.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import (
    ALL,
    PROMPT,
    STORED_ROOM,
    every_set,
    fetch,
    in_chunks,
    of_set,
    windows_and_states,
)
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.pool_model import NumpyPool
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import compute, finish, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import INSERT, after_restart, host_len, payload, script_of
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_unified_hicache import storage_tier
from kvcache_unified_hicache.storage.page_keys import PageKeys


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


@pytest.mark.parametrize("other", [(b"lora",), (b"",), (b"a", b"bc"), (b"ab", b"c")])
@every_set
def test_another_extra_key_never_hits(stored, components, other):
    """K1, K2, T19."""
    storage = StorageScript()
    first = stored(STORED_ROOM, storage, components)
    request = RequestModel(first.checked, ids(1, 2), (b"abc",))
    assert request.admit() and request.compute(8)
    request.finish()
    first.cache.close()
    world = stored(STORED_ROOM, storage, components)
    assert fetch(world, ids(1, 2), other).ticket.span == (0, 0) and not storage.fetched
    assert fetch(world, ids(1, 2), (b"abc",)).ticket.span == (0, 8)
    finish(world)


@every_set
def test_another_version_never_hits(stored, components):
    """K3, K5."""
    model = ModelSpec("by-value", "1", "hybrid_recurrent", components)
    storage = StorageScript()
    first = stored(STORED_ROOM, storage, components, model=model)
    compute(first, ids(1, 2))
    first.cache.close()
    world = stored(STORED_ROOM, storage, components, model=replace(model, model_version="2"))
    assert fetch(world, ids(1, 2)).ticket.span == (0, 0) and not storage.fetched
    again = stored(STORED_ROOM, storage, components, model=model)
    assert fetch(again, ids(1, 2)).ticket.span == (0, 8)


def test_another_component_never_hits(stored):
    """K3: pools of one identity, of pages of one size; the storage refuses two contents under one key."""
    page = stored(STORED_ROOM, StorageScript(), ALL).host.pools["full"].host_struct()
    pools = {spec.name: NumpyPool("same", page) for spec in ALL}
    world = after_restart(stored, ids(1, 2), sizes=STORED_ROOM, components=ALL, pools=pools)
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
        world = stored(INSERT, StorageScript(), components)
        in_chunks(world, PROMPT, chunk)
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
        world = after_restart(stored, PROMPT[:12], PROMPT, sizes=STORED_ROOM, components=(FULL, component))
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


class TestFaultsOfComponentKeys(PlantedFaultTests):
    faults = (
        Fault(
            "K1: a window's keys without the extra key",
            of_set("S", test_another_extra_key_never_hits, (b"lora",)),
            Replacement(PageKeys, "root", "frame(*check_extra_key(extra_key))", "b''"),
        ),
        Fault(
            "K1: a state's keys without the extra key",
            of_set("R", test_another_extra_key_never_hits, (b"lora",)),
            Replacement(PageKeys, "root", "frame(*check_extra_key(extra_key))", "b''"),
        ),
        Fault(
            "K5: a state's keys without the version",
            of_set("R", test_another_version_never_hits),
            Replacement(PageKeys, "__init__", "_text(model.model_version), ", ""),
        ),
        Fault(
            "K3: keys without the component",
            test_another_component_never_hits,
            Replacement(storage_tier, "component_identity", "frame(_text(name), pool,", "frame(pool,"),
        ),
        Fault(
            "K4: the digest of a chunk's start for all of it",
            of_set("FSR", test_one_key_for_every_way_of_chunking),
            Replacement(PageKeys, "chain", "sha.update(digest + data", "sha.update(parent + data"),
        ),
    )
