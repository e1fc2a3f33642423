"""Copies between L1 and L2 run beside the forward passes: dispatched in one step, committed in a later one, never waited for."""

import threading

import jax
import numpy as np
import pytest
from jax._src.array import ArrayImpl

from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import build_engine
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_engine.request import RequestSpec
from kvcache_engine.runner import ModelRunner
from kvcache_unified_hicache.controller import HiCacheController
from kvcache_unified_hicache.copies import WriteCopy


class Recording:
    """What happened, in order: (step, what) with what among "forward", "d2h dispatched", "d2h committed", "h2d ...".

    `waited`: every time the owner thread asked for the content of a copy that was not complete. A wait for anything else, such as
    the logits that a token is drawn from, is the engine's own business.
    """

    def __init__(self) -> None:
        self.step = 0
        self.events: list[tuple[int, str]] = []
        self.waited: list[str] = []
        self.spans: dict[str, list[tuple[int, int]]] = {"d2h": [], "h2d": []}
        self.dispatched: dict[int, tuple[int, object]] = {}
        self.forwards: list[int] = []
        self._owner = threading.get_ident()
        self._copies: dict[int, jax.Array] = {}

    def note(self, what: str) -> None:
        self.events.append((self.step, what))

    def watch(self, pages) -> None:
        for array in jax.tree.leaves(pages):
            self._copies[id(array)] = array

    def look(self, what: str, *arrays) -> None:
        if threading.get_ident() != self._owner:
            return
        for array in arrays:
            if self._copies.get(id(array)) is array and not array.is_ready():
                self.waited.append(f"step {self.step}: {what}")


def looking(record: Recording, name: str, original):
    def wrapped(*args, **kwargs):
        record.look(name, *jax.tree.leaves(args))
        return original(*args, **kwargs)

    return wrapped


@pytest.fixture
def recording(monkeypatch) -> Recording:
    record = Recording()

    def around(owner, name, before=None, after=None):
        original = getattr(owner, name)

        def wrapped(self, *args, **kwargs):
            if before is not None:
                before(self, *args)
            result = original(self, *args, **kwargs)
            if after is not None:
                after(self, result, *args)
            return result

        monkeypatch.setattr(owner, name, wrapped)

    def on_dispatch(queue, _buffers):
        for direction, ops in (("d2h", queue._gathers), ("h2d", queue._scatters)):
            for op in ops:
                if not op.cancelled:
                    record.note(f"{direction} dispatched")
                    record.dispatched[id(op)] = (record.step, op)  # kept, so that no other takes its id

    def on_finish(_controller, copy, direction, ok):
        assert ok
        record.note(f"{direction} committed")
        ops = [copy._queued] if isinstance(copy, WriteCopy) else copy._scatters
        for op in ops:
            record.spans[direction].append((record.dispatched[id(op)][0], record.step))

    around(TransferQueue, "dispatch", before=on_dispatch)
    around(HiCacheController, "_finish", before=on_finish)
    around(ModelRunner, "run", after=lambda _runner, _result, *_: record.note("forward"))
    around(PagedKVPool, "gather", after=lambda _pool, pages, *_: record.watch(pages))
    around(ArrayImpl, "block_until_ready", before=lambda array: record.look("block_until_ready", array))
    # numpy reads an array of the CPU through the buffer protocol, which nothing in Python sees.
    for module, name in ((np, "asarray"), (np, "array"), (np, "copyto"), (jax, "block_until_ready"), (jax, "device_get")):
        monkeypatch.setattr(module, name, looking(record, name, getattr(module, name)))
    return record


@pytest.fixture(scope="module")
def build(qwen3):
    """Engines that share their compiled programs."""
    config = EngineConfig(model="test", device_tokens=256, chunk_tokens=32, max_running=4, compilation_cache=None)
    first = build_engine(CacheConfig(page_size=16), config, qwen3)

    def with_hicache(hicache: HiCacheConfig):
        cache = CacheConfig(cache_type="unified_radix_cache", page_size=16, hicache=hicache)
        return build_engine(cache, config, qwen3, like=first)

    return with_hicache


def serve(engine, recording):
    """Three long prompts in turn through an L1 for two, while short requests decode; then the first again."""
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, 256, 100).astype(np.int32) for _ in range(3)]
    requests = []
    for i, text in enumerate([*texts, texts[0], texts[1]]):
        requests.append(engine.scheduler.submit(RequestSpec(str(i), text, 4)))
        engine.scheduler.submit(RequestSpec(f"beside {i}", rng.integers(0, 256, 12).astype(np.int32), 24))
    while engine.scheduler.busy or engine.cache.size("full", "host").in_flight:
        recording.step += 1
        engine.scheduler.step()
        engine.scheduler.check_integrity()
    engine.cache.close()
    assert sum(request.counts.host for request in requests) >= 96


@pytest.mark.parametrize("pool", ["per_page", "preallocated"])
@pytest.mark.parametrize("waits", ["future", "threadpool"])
@pytest.mark.parametrize("on", ["insert", "evict"])
def test_dispatched_in_one_step_and_committed_in_a_later_one(build, recording, on, waits, pool):
    hicache = HiCacheConfig(ratio=6.0, backup_on=on, persist_on="never", async_impl=waits, host_pool=pool)
    serve(build(hicache), recording)
    for direction, least in (("d2h", 5), ("h2d", 1)):
        spans = recording.spans[direction]
        assert len(spans) >= least
        assert all(committed > dispatched for dispatched, committed in spans)
    # Forward passes were dispatched behind a copy and before its commit.
    forwards = {step for step, what in recording.events if what == "forward"}
    assert sum(any(dispatched <= step < committed for step in forwards) for dispatched, committed in recording.spans["d2h"]) >= 3
    assert recording.waited == []


def test_a_wait_would_be_seen(build, recording, monkeypatch):
    """The control: a controller that reads its copies as soon as they are dispatched."""
    dispatch = TransferQueue.dispatch

    def impatient(queue, buffers):
        gathers = list(queue._gathers)
        result = dispatch(queue, buffers)
        for op in gathers:
            np.asarray(op.pages.v[-1])
        return result

    monkeypatch.setattr(TransferQueue, "dispatch", impatient)
    monkeypatch.setattr(ArrayImpl, "is_ready", lambda _array: False)
    engine = build(HiCacheConfig(ratio=6.0))
    engine.scheduler.submit(RequestSpec("one", np.arange(40, dtype=np.int32), 2))
    while engine.scheduler.busy:
        engine.scheduler.step()
    engine.cache.close()
    assert any("asarray" in text for text in recording.waited)
