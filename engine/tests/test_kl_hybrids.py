"""Reused windows and states change nothing: logits against chunk_cache with hits from L1, L2 and L3, what was moved by component
and tier, one component evicted and not the other, a restart, and pressure on every pool at once."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kvcache_conformance.hybrid_rows import GEMMA, KIMI, MIMO, PAIRS, PRODUCT, Prompts, Row, conversations
from kvcache_conformance.logit_recorder import LogitRecorder, compare, kl_divergence
from kvcache_conformance.tiny_by_name import TINY_MODELS, resized
from kvcache_conformance.tiny_models import write_model_folder
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import Tier
from kvcache_core.contracts.tokens import floor_page
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.model.loaded import LoadedModel, load_model
from kvcache_engine.request import Request, RequestSpec, Sampling
from kvcache_radix.node import Node
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.controller import HiCacheController

LIMIT = 1e-6
CONTEXT = 2048


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model by name and window, made once."""
    made: dict[tuple[str, int], LoadedModel] = {}

    def of(row: Row) -> LoadedModel:
        key = (row.model, row.window)
        if key not in made:
            tiny = resized(TINY_MODELS[row.model](), CONTEXT, row.window)
            made[key] = load_model(write_model_folder(tiny, tmp_path_factory.mktemp("models") / row.model))
        return made[key]

    return of


@pytest.fixture
def traffic(monkeypatch) -> Counter:
    """Counts units by tier they came from and component: pages, or states."""
    counts, load, insert = Counter(), HiCacheController.load, RadixTree.insert_host

    def counted_load(controller, device_indices, host_indices, component, on_commit):
        counts["host", component] += len(host_indices)
        return load(controller, device_indices, host_indices, component, on_commit)

    def counted_insert(tree, ids, values, extra_key=()):
        for name, segments in values.items():
            counts["storage", name] += sum(len(segment.indices) for segment in segments)
        return insert(tree, ids, values, extra_key)

    monkeypatch.setattr(HiCacheController, "load", counted_load)
    monkeypatch.setattr(RadixTree, "insert_host", counted_insert)
    return counts


class Session:
    """An engine for one row, and the requests that it served. Without `root` it reuses nothing."""

    def __init__(self, row: Row, model: LoadedModel, recorder, root: Path | None, like: Engine | None, **sizes) -> None:
        hicache = {
            "storage": {"kind": "file", "path": str(root)},
            "ratio": 2.0,
            "backup_on": row.on,
            "persist_on": "evict",
            "async_impl": row.waits,
            "host_pool": row.pool,
            "prefetch_threshold": row.page,
            "prefetch_timeout": None,
        }
        values = {"cache_type": "chunk_cache"} if root is None else {"hicache": hicache}
        config = CacheConfig.model_validate({"page_size": row.page, **values})
        settings = {"device_tokens": max(600, 100 * row.page), "device_states": 24, "max_running": 1, "chunk_tokens": row.chunk}
        engine_config = EngineConfig.model_validate(
            {"model": "test", "snapshot_interval": row.interval, "compilation_cache": None, **settings, **sizes}
        )
        self.engine = build_engine(config, engine_config, model, sampler=recorder, like=like)
        assert self.engine.resolution.cache_type == ("chunk_cache" if root is None else "unified_radix_cache")
        self.done: dict[int, Request] = {}

    def serve(self, *specs: RequestSpec) -> Request:
        """All of `specs` at once; returns the last."""
        requests = [self.engine.scheduler.submit(spec) for spec in specs]
        while self.engine.scheduler.busy:
            self.step()
        for request in requests:
            assert request.error is None
            assert request.counts.cached + request.counts.computed == request.n_prompt
            self.done[request.spec.sampling.seed] = request
        return requests[-1]

    def step(self) -> None:
        self.engine.scheduler.step()
        self.engine.scheduler.check_integrity()

    def evict(self, *components: str, tier: Tier = "device") -> None:
        cache = self.engine.cache
        for name in components:
            cache.evict(name, cache.size(name, tier).total, tier)
            assert cache.size(name, tier).evictable == 0
        while any(cache.size(name, "host").in_flight for name in self.engine.pools):
            self.step()

    def end(self) -> None:
        cache = self.engine.cache
        for name in self.engine.pools:
            size = cache.size(name)
            assert size.request_owned == size.protected == size.in_flight == 0
        cache.close()


def spec_of(seed: int, ids, n: int) -> RequestSpec:
    return RequestSpec(str(seed), np.asarray(ids, np.int32), n, Sampling(seed=seed))


@pytest.fixture(scope="module")
def alone(models):
    """How chunk_cache serves the same requests. Its programs serve the row, too."""
    made: dict[tuple[str, int, int], tuple[Session, LogitRecorder]] = {}

    def of(row: Row):
        key = (row.model, row.page, row.window)
        if key not in made:
            prompts, recorder = Prompts(row), LogitRecorder()
            session = Session(row, models(row), recorder, None, None)
            first = session.serve(spec_of(0, prompts.base, prompts.answer))
            for seed in (1, 3, 5, 6):
                session.serve(spec_of(seed, prompts.base, prompts.answer))
            for seed in (2, 7):
                session.serve(spec_of(seed, prompts.branch, prompts.answer))
            session.serve(spec_of(4, prompts.turn(first.output_ids), prompts.answer))
            session.end()
            made[key] = session, recorder
        return made[key]

    return of


def counted(traffic: Counter, tier: str) -> dict[str, int]:
    """And forget."""
    counts = {name: n for (where, name), n in traffic.items() if where == tier}
    traffic.clear()
    return counts


def check_row(row: Row, model: LoadedModel, reference: tuple[Session, LogitRecorder], traffic: Counter, root: Path) -> None:
    (plain, expected), prompts = reference, Prompts(row)
    recorder = LogitRecorder(forced=expected.tokens)
    session = Session(row, model, recorder, root, plain.engine)
    cache, special, page = session.engine.cache, row.special, row.page
    traffic.clear()

    first = session.serve(spec_of(0, prompts.base, prompts.answer))
    assert first.counts.cached == 0
    # From L1: the prompt again, and one that leaves it in the middle.
    assert session.serve(spec_of(1, prompts.base, prompts.answer)).counts.device == prompts.hit
    assert session.serve(spec_of(2, prompts.branch, prompts.answer)).counts.device == row.reused(prompts.cut)
    assert not traffic
    # From L2, after everything has left L1. Of a window only its end comes back, of the states one.
    session.evict("full", special)
    request = session.serve(spec_of(3, prompts.base, prompts.answer))
    assert (request.counts.device, request.counts.host, request.counts.storage) == (0, prompts.hit, 0)
    row.check_loaded(counted(traffic, "host"), prompts.hit // page, prompts.hit)
    # One component has left L1 and the other has not.
    session.evict(special)
    assert cache.size("full").evictable >= prompts.hit // page
    request = session.serve(spec_of(4, prompts.turn(first.output_ids), prompts.answer))
    assert request.counts.cached == prompts.turn_hit
    row.check_loaded(counted(traffic, "host"), 0, prompts.turn_hit)
    # It has left L2, too: storage gives it back alone.
    assert cache.persist(60.0).remaining == 0
    session.evict(special)
    session.evict(special, tier="host")
    traffic.clear()
    request = session.serve(spec_of(5, prompts.base, prompts.answer))
    # To go on from a length, a window of one token needs nothing that was before.
    needs_it = row.special_units(prompts.hit) > 0
    assert (request.counts.device, request.counts.storage) == ((0, prompts.hit) if needs_it else (prompts.hit, 0))
    assert counted(traffic, "storage") == row.fetched(0, prompts.hit)
    assert cache.persist(60.0).remaining == 0
    session.end()

    # After a restart: from L3, and the branch partly from there, partly from what came for the first.
    again = Session(row, model, recorder, root, session.engine)
    request = again.serve(spec_of(6, prompts.base, prompts.answer))
    assert (request.counts.device, request.counts.host, request.counts.storage) == (0, 0, prompts.hit)
    assert counted(traffic, "storage") == row.fetched(prompts.hit // page, prompts.hit)
    assert again.serve(spec_of(7, prompts.branch, prompts.answer)).counts.cached == floor_page(len(prompts.branch) - 1, page)
    again.end()

    worst, places = compare(expected, recorder)
    assert worst <= LIMIT
    assert places == sum(len(request.output_ids) for request in plain.done.values())
    assert recorder.tokens == expected.tokens  # greedy tokens, not only the forced ones
    for counters in (cache.counters, again.engine.cache.counters):
        assert not counters.dropped


def pairs_in(rows: Sequence[Row]) -> set:
    """Every two values that stand in one row: of the model, the page, the window beside it, and the settings."""
    named = [[(name, getattr(row, name)) for name in ("model", "page", "fit", "on", "waits", "pool")] for row in rows]
    return {pair for values in named for pair in combinations(values, 2)}


def test_the_short_run_covers_every_pair():
    assert pairs_in(PAIRS) == pairs_in(PRODUCT)
    assert {(row.page, row.window) for row in PAIRS} == {(row.page, row.window) for row in PRODUCT}


@pytest.mark.parametrize("row", PAIRS, ids=str)
def test_every_tier(row, models, alone, traffic, tmp_path):
    check_row(row, models(row), alone(row), traffic, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in PRODUCT if row not in PAIRS], ids=str)
def test_every_tier_whole_product(row, models, alone, traffic, tmp_path):
    check_row(row, models(row), alone(row), traffic, tmp_path)


CONTROLS = [Row(GEMMA, 16, 40), Row(KIMI, 16, 0, pool="preallocated"), Row(MIMO, 16, 16, pool="preallocated"), Row(KIMI, 16, 0)]


@pytest.mark.parametrize("row", CONTROLS, ids=str)
def test_a_foreign_page_or_state_in_host_memory_is_seen(row, models, tmp_path):
    """The control: were windows and states not read from L2, exchanging one of them there would change nothing."""
    rng = np.random.default_rng(5)
    texts = [rng.integers(0, 256, 5 * row.page + 7).astype(np.int32) for _ in range(2)]
    recorder = LogitRecorder()
    session = Session(row, models(row), recorder, tmp_path, None)
    for seed, text in enumerate(texts):
        session.serve(spec_of(seed, text, 8))
    first = {place: rows[-1] for place, rows in recorder.logits.items() if place[0] == 0}

    def repeat() -> float:
        """Serve the first prompt again, from L2, and compare with how it was served at first."""
        session.evict("full", row.special)
        request = session.serve(spec_of(0, texts[0], 8))
        assert request.counts.host == 5 * row.page
        return max(kl_divergence(logits, recorder.logits[place][-1]) for place, logits in first.items())

    assert repeat() <= LIMIT
    session.evict("full", row.special)
    host = cast(Any, session.engine.cache)._host._pools[1]
    mine, theirs = (last_slot(session.engine, text[: 5 * row.page]) for text in texts)
    [batch] = host.get(theirs).batches()
    host.put(mine, batch.pages, batch.positions.tolist().index(0))
    assert repeat() > 1e-3
    session.end()


def last_slot(engine: Engine, ids) -> np.ndarray:
    """The slot of host memory that holds the state after `ids`, or the last page of their window."""
    node = cast(Node, engine.cache.match_prefix(ids).handle)
    data = np.frombuffer(node.cells[1].host or b"", np.int32)
    behind = 0 if len(data) == 1 else (node.end - len(ids)) // 16
    return data[len(data) - behind - 1 :][:1]


@pytest.mark.parametrize("row", [Row(GEMMA, 16, 40), Row(KIMI, 16, 0, on="evict")], ids=str)
def test_under_pressure_in_every_pool(row, models, traffic, tmp_path):
    """Too little of everything: preemption, eviction of each component for its own sake, loads and fetches beside each other."""
    sizes = {"device_tokens": 40 * row.page, "window_tokens": 20 * row.page, "device_states": 9, "max_running": 4}
    specs = [spec_of(seed, ids, 24 + seed % 17) for seed, ids in enumerate(conversations(row))]
    expected = LogitRecorder()
    plain = Session(row, models(row), expected, None, None, **sizes)
    plain.serve(*specs)
    plain.end()
    recorder = LogitRecorder(forced=expected.tokens)
    session = Session(row, models(row), recorder, tmp_path, plain.engine, **sizes)
    session.serve(*specs)
    counts = [request.counts for request in session.done.values()]
    worst, _ = compare(expected, recorder)
    assert worst <= LIMIT
    assert recorder.tokens == expected.tokens
    assert {seed: r.output_ids for seed, r in session.done.items()} == {seed: r.output_ids for seed, r in plain.done.items()}
    assert session.engine.cache.counters.device_evicted_tokens > 0
    assert session.engine.scheduler.stats.preemptions + plain.engine.scheduler.stats.preemptions > 0
    assert sum(c.host + c.storage for c in counts) > 0 and sum(c.device for c in counts) > 0
    assert traffic["host", "full"] > 0 and traffic["host", row.special] > 0
    session.end()
