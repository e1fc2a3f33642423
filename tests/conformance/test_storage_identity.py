"""Each field of a page's identity, changed alone, gives zero hits through a cache and no error; unchanged, the same pages are
found."""

from dataclasses import replace

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL
from kvcache_conformance.pool_model import NumpyPool
from kvcache_conformance.scenario_steps import compute, ids
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.model_spec import ModelSpec

MODEL = ModelSpec("by-value", "1", "full_attention", (FULL,))
ROOM = TierSizes(PAGE, 16, 64, "insert", "evict")
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
