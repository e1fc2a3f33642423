"""Traps of keys (K1 to K3, K5, T19): what is stored under another identity never hits and is no error; under its own it does."""

from dataclasses import replace

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.pool_model import NumpyPool
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import compute, finish, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_scenarios import ROOM, after_restart, host_len, prefetch, script_of
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_unified_hicache.storage.page_keys import PageKeys

MODEL = ModelSpec("by-value", "1", "full_attention", (FULL,))
IDENTITY = NumpyPool.identity


def filled(stored):
    storage = StorageScript()
    first = stored(ROOM, storage, model=MODEL, tp_rank=1, tp_size=2)
    compute(first, ids(1, 2, 3, 4))
    first.settle()
    first.cache.close()
    assert len(storage.pages) == 4
    return storage


def hits(stored, storage, sizes=ROOM, extra_key=(), **changes):
    world = stored(sizes, storage, **{"model": MODEL, "tp_rank": 1, "tp_size": 2, **changes})
    before = len(storage.fetched)
    ticket = world.prefetch(ids(1, 2, 3, 4), extra_key).ticket
    world.settle()
    assert ticket.done and not world.cache.counters.misses
    assert (ticket.span == (0, 0)) == (len(storage.fetched) == before)
    return ticket.span[1]


@pytest.mark.parametrize(
    "change",
    [
        {"tp_rank": 0},
        {"tp_size": 4},
        {"model": replace(MODEL, model_id="other")},
        {"model": replace(MODEL, model_version="2")},
        {"sizes": ROOM._replace(page_size=2 * PAGE)},
        {"extra_key": (b"lora",)},
    ],
    ids=["shard", "shards", "model id", "version", "page size", "extra key"],
)
def test_another_identity_never_hits(stored, change):
    storage = filled(stored)
    assert hits(stored, storage, **change) == 0
    assert hits(stored, storage) == 16


@pytest.mark.parametrize(
    "identity", [b"full/int8/4x8", b"full/uint8/8x4", b"swa/uint8/4x8"], ids=["dtype", "layout", "component"]
)
def test_another_pool_never_hits(stored, identity, monkeypatch):
    storage = filled(stored)
    with monkeypatch.context() as patch:
        patch.setattr(NumpyPool, "identity", property(lambda self: identity))
        assert hits(stored, storage) == 0
    assert NumpyPool.identity is IDENTITY
    assert hits(stored, storage) == 16


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
    world = after_restart(stored, ids(1, 2))
    script = script_of(world)
    assert script.exchange(0, 1)
    prefetch(world, ids(1, 2))
    world.settle()
    assert script.bad == 2 and not script.pages and host_len(world, ids(1, 2)) == 0
    compute(world, ids(1, 2))
    world.settle()
    world.persist(5.0)
    assert len(script.pages) == 2
    finish(world)


def another_extra_key(stored):
    test_another_extra_key_never_hits(stored, (b"lora",))


def another_version(stored):
    test_another_model_never_hits(stored, {"model_version": "2"})


class TestFaultsOfIdentity(PlantedFaultTests):
    faults = (
        Fault(
            "K1: keys without the extra key",
            another_extra_key,
            Replacement(PageKeys, "root", "frame(*check_extra_key(extra_key))", "b''"),
        ),
        Fault(
            "K5: keys without the version", another_version, Replacement(PageKeys, "__init__", "_text(model.model_version), ", "")
        ),
    )
