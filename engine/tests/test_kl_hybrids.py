"""Reused windows and states change nothing: logits against chunk_cache with hits from L1, L2 and L3, what was moved by component
and tier, one component evicted and not the other, a restart, and pressure on every pool at once."""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

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
GEMMA, MIMO, KIMI = "tiny-gemma3", "tiny-mimo-v2-flash", "tiny-kimi-linear"


@dataclass(frozen=True)
class Row:
    """One line of the product: a model, a page, a window (0 for the model with states), and how tiers are worked."""

    model: str
    page: int
    window: int
    on: str = "insert"
    waits: str = "future"
    pool: str = "per_page"

    def __str__(self) -> str:
        return f"{self.model[5:]}-page{self.page}-window{self.window}-{self.on}-{self.waits}-{self.pool}"

    @property
    def special(self) -> str:
        """The component besides `full`."""
        return "recurrent" if self.model == KIMI else "swa"

    @property
    def fit(self) -> str:
        """The window beside a page."""
        if self.model == KIMI:
            return "no window"
        if self.window <= self.page:
            return "smaller" if self.window < self.page else "equal"
        return "no multiple" if self.window % self.page else "larger"

    @property
    def interval(self) -> int:
        return 6 * self.page

    @property
    def chunk(self) -> int:
        """Small, and no whole pages: every size of a chunk is compiled anew."""
        return 28 if self.page == 64 else 13

    def special_units(self, length: int) -> int:
        """What a prefix of `length` needs of it: pages of the window, or one state."""
        return 1 if self.model == KIMI else (length - floor_page(max(0, length - self.window + 1), self.page)) // self.page

    def check_loaded(self, counts: dict[str, int], full: int, length: int) -> None:
        """A load brings whole nodes, so of a window it may be up to a chunk more than needed."""
        more = 0 if self.model == KIMI else self.chunk // self.page
        assert counts.get("full", 0) == full
        assert self.special_units(length) <= counts.get(self.special, 0) <= self.special_units(length) + more

    def fetched(self, full: int, length: int) -> dict[str, int]:
        """What a prefix of `length` gets from storage, of which it lacks `full` pages: exactly what it needs."""
        return {name: n for name, n in (("full", full), (self.special, self.special_units(length))) if n}

    def reused(self, common: int) -> int:
        """How far a prompt is reused that leaves the first one after `common` tokens, somewhere in its middle."""
        return common - common % (self.interval if self.model == KIMI else self.page)


WINDOWS = {1: (1, 16), 16: (8, 16, 48, 40), 64: (16, 64, 128, 100)}
"""By page: smaller than a page, equal, larger, and no multiple; with pages of one token only equal and larger."""
SETTINGS = [
    (on, waits, pool) for on in ("insert", "evict") for waits in ("future", "threadpool") for pool in ("per_page", "preallocated")
]
SHAPES = [(model, page, window) for page, windows in WINDOWS.items() for window in windows for model in (GEMMA, MIMO)]
SHAPES += [(KIMI, page, 0) for page in WINDOWS]
PRODUCT = [Row(*shape, *setting) for shape in SHAPES for setting in SETTINGS]
# Every window of every page, and every pair of values that the product has.
PAIRS = [
    Row(GEMMA, 1, 1, "insert", "future", "preallocated"),
    Row(MIMO, 1, 16, "evict", "threadpool", "per_page"),
    Row(GEMMA, 16, 8, "evict", "future", "per_page"),
    Row(MIMO, 16, 16, "insert", "threadpool", "per_page"),
    Row(GEMMA, 16, 48, "insert", "future", "preallocated"),
    Row(MIMO, 16, 40, "evict", "future", "preallocated"),
    Row(MIMO, 64, 16, "insert", "threadpool", "preallocated"),
    Row(GEMMA, 64, 64, "evict", "future", "per_page"),
    Row(MIMO, 64, 128, "evict", "future", "preallocated"),
    Row(GEMMA, 64, 100, "insert", "threadpool", "per_page"),
    Row(KIMI, 1, 0, "evict", "future", "per_page"),
    Row(KIMI, 16, 0, "insert", "threadpool", "preallocated"),
    Row(KIMI, 64, 0, "insert", "future", "per_page"),
]


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


class Script:
    """The prompts of a row: the first has more than 20 pages and 5 windows, another leaves it in the middle, and one goes on."""

    def __init__(self, row: Row) -> None:
        rng = np.random.default_rng(row.page)
        page = row.page
        n = max(21 * page + page // 2 + 1, 5 * row.window + 9)
        self.base = rng.integers(0, 256, n)
        self.cut = 13 * page + page // 3
        self.branch = np.concatenate([self.base[: self.cut], rng.integers(0, 256, 2 * page + 3)])
        self.more = rng.integers(0, 256, page + 3)
        self.answer = 12
        self.hit = floor_page(n - 1, page)
        self.turn_hit = floor_page(n + self.answer - 1, page)

    def turn(self, first: Request) -> np.ndarray:
        return np.concatenate([self.base, first.output_ids, self.more])


@pytest.fixture(scope="module")
def alone(models):
    """How chunk_cache serves the same requests. Its programs serve the row, too."""
    made: dict[tuple[str, int, int], tuple[Session, LogitRecorder]] = {}

    def of(row: Row):
        key = (row.model, row.page, row.window)
        if key not in made:
            script, recorder = Script(row), LogitRecorder()
            session = Session(row, models(row), recorder, None, None)
            first = session.serve(spec_of(0, script.base, script.answer))
            for seed in (1, 3, 5, 6):
                session.serve(spec_of(seed, script.base, script.answer))
            for seed in (2, 7):
                session.serve(spec_of(seed, script.branch, script.answer))
            session.serve(spec_of(4, script.turn(first), script.answer))
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
    (plain, expected), script = reference, Script(row)
    recorder = LogitRecorder(forced=expected.tokens)
    session = Session(row, model, recorder, root, plain.engine)
    cache, special, page = session.engine.cache, row.special, row.page
    traffic.clear()

    first = session.serve(spec_of(0, script.base, script.answer))
    assert first.counts.cached == 0
    # From L1: the prompt again, and one that leaves it in the middle.
    assert session.serve(spec_of(1, script.base, script.answer)).counts.device == script.hit
    assert session.serve(spec_of(2, script.branch, script.answer)).counts.device == row.reused(script.cut)
    assert not traffic
    # From L2, after everything has left L1. Of a window only its end comes back, of the states one.
    session.evict("full", special)
    request = session.serve(spec_of(3, script.base, script.answer))
    assert (request.counts.device, request.counts.host, request.counts.storage) == (0, script.hit, 0)
    row.check_loaded(counted(traffic, "host"), script.hit // page, script.hit)
    # One component has left L1 and the other has not.
    session.evict(special)
    assert cache.size("full").evictable >= script.hit // page
    request = session.serve(spec_of(4, script.turn(first), script.answer))
    assert request.counts.cached == script.turn_hit
    row.check_loaded(counted(traffic, "host"), 0, script.turn_hit)
    # It has left L2, too: storage gives it back alone.
    assert cache.persist(60.0).remaining == 0
    session.evict(special)
    session.evict(special, tier="host")
    traffic.clear()
    request = session.serve(spec_of(5, script.base, script.answer))
    # To go on from a length, a window of one token needs nothing that was before.
    needs_it = row.special_units(script.hit) > 0
    assert (request.counts.device, request.counts.storage) == ((0, script.hit) if needs_it else (script.hit, 0))
    assert counted(traffic, "storage") == row.fetched(0, script.hit)
    assert cache.persist(60.0).remaining == 0
    session.end()

    # After a restart: from L3, and the branch partly from there, partly from what came for the first.
    again = Session(row, model, recorder, root, session.engine)
    request = again.serve(spec_of(6, script.base, script.answer))
    assert (request.counts.device, request.counts.host, request.counts.storage) == (0, 0, script.hit)
    assert counted(traffic, "storage") == row.fetched(script.hit // page, script.hit)
    assert again.serve(spec_of(7, script.branch, script.answer)).counts.cached == floor_page(len(script.branch) - 1, page)
    again.end()

    worst, places = compare(expected, recorder)
    assert worst <= LIMIT
    assert places == sum(len(request.output_ids) for request in plain.done.values())
    assert recorder.tokens == expected.tokens  # greedy tokens, not only the forced ones
    for counters in (cache.counters, again.engine.cache.counters):
        assert not counters.dropped


def pairs_in(rows: list[Row]) -> set:
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


def conversations(row: Row, families: int = 4, turns: int = 3) -> list[RequestSpec]:
    """Turn by turn over the families, so that a family has left L1 when its next turn comes. Pairs of them share a beginning and
    branch inside a page; odd turns branch off before the end of the turn before."""
    rng = np.random.default_rng(row.page + row.window)
    page = row.page
    beginnings = [rng.integers(0, 256, 9 * page + 5) for _ in range((families + 1) // 2)]
    texts = [
        np.concatenate([beginnings[f // 2][: 9 * page + 5 - f % 2], rng.integers(0, 256, 11 * page + f)]) for f in range(families)
    ]
    made: list[RequestSpec] = []
    for turn in range(turns):
        for family in range(families):
            kept = texts[family][: len(texts[family]) - turn % 2 * (page + 3)]
            texts[family] = np.concatenate([kept, rng.integers(0, 256, page // 2 + 9 + turn)])
            made.append(spec_of(len(made), texts[family], 24 + len(made) % 17))
    return made


@pytest.mark.parametrize("row", [Row(GEMMA, 16, 40), Row(KIMI, 16, 0, on="evict")], ids=str)
def test_under_pressure_in_every_pool(row, models, traffic, tmp_path):
    """Too little of everything: preemption, eviction of each component for its own sake, loads and fetches beside each other."""
    sizes = {"device_tokens": 40 * row.page, "window_tokens": 20 * row.page, "device_states": 9, "max_running": 4}
    specs, expected = conversations(row), LogitRecorder()
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
