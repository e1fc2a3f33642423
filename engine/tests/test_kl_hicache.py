"""Pages that come back from host memory change nothing: logits with HiCache against radix_cache, and what happened on the way."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder, compare, kl_divergence
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.request import Phase, Request, RequestSpec, Sampling
from kvcache_radix.node import Node
from kvcache_radix.store import NodeStore

LIMIT = 1e-6


@dataclass(frozen=True)
class Row:
    """One line of the product. `on`: when copies to L2 are made."""

    on: str
    waits: str
    pool: str
    page: int

    def __str__(self) -> str:
        return f"{self.on}-{self.waits}-{self.pool}-{self.page}"

    @property
    def hicache(self) -> HiCacheConfig:
        settings = {"backup_on": self.on, "persist_on": "never", "async_impl": self.waits, "host_pool": self.pool}
        return HiCacheConfig.model_validate({"ratio": 6.0, **settings})


PRODUCT = [
    Row(on, waits, pool, page)
    for page in (1, 16, 64)
    for on in ("insert", "evict")
    for waits in ("future", "threadpool")
    for pool in ("per_page", "preallocated")
]
# Six rows that hold every pair of values; the whole product is marked slow.
PAIRS = [
    Row("insert", "future", "per_page", 1),
    Row("evict", "threadpool", "preallocated", 1),
    Row("insert", "future", "preallocated", 16),
    Row("evict", "threadpool", "per_page", 16),
    Row("insert", "threadpool", "per_page", 64),
    Row("evict", "future", "preallocated", 64),
]
# Four rows hold every pair of the three settings with two values; three cannot.
REAL = [
    Row("insert", "threadpool", "preallocated", 16),
    Row("evict", "threadpool", "per_page", 16),
    Row("evict", "future", "preallocated", 64),
    Row("insert", "future", "per_page", 1),
]


@dataclass(frozen=True)
class Scale:
    """Sizes in tokens at which L1 holds about two of six conversations; found by counting events, and asserted so."""

    shared: int
    own: int
    cut: int
    device: int
    chunk: int


SCALES = {1: Scale(8, 40, 5, 160, 32), 16: Scale(16, 64, 13, 256, 32), 64: Scale(64, 192, 96, 768, 128)}


def conversations(vocab: int, page: int, families: int = 6, turns: int = 3) -> list[RequestSpec]:
    """Turn by turn over the families, so that a family's pages have left L1 when its next turn comes. Pairs of families share a
    beginning and branch inside a page; odd turns branch off before the end of the turn before. The last two ask for what left L1
    long ago."""
    scale = SCALES[page]
    rng = np.random.default_rng(page)
    beginnings = [rng.integers(0, vocab, scale.shared + 5) for _ in range(families // 2)]
    texts = [
        np.concatenate([beginnings[f // 2][: scale.shared + 5 - f % 2], rng.integers(0, vocab, scale.own + 11 + f)])
        for f in range(families)
    ]
    made: list[RequestSpec] = []

    def ask(family: int, turn: int) -> None:
        seed = len(made)
        text = texts[family].astype(np.int32)
        made.append(RequestSpec(f"{family}#{turn}", text, 4 + seed % 7, Sampling(seed=seed)))

    for turn in range(turns):
        for family in range(families):
            kept = texts[family][: len(texts[family]) - turn % 2 * scale.cut]
            texts[family] = np.concatenate([kept, rng.integers(0, vocab, page // 3 + 9 + turn)])
            ask(family, turn)
    ask(0, turns)
    ask(2, turns)
    return made


def build(model, recorder, config: CacheConfig, scale: Scale, like: Engine | None = None) -> Engine:
    engine_config = EngineConfig(
        model="test", device_tokens=scale.device, chunk_tokens=scale.chunk, max_running=4, compilation_cache=None
    )
    return build_engine(config, engine_config, model, sampler=recorder, like=like)


def finish(engine: Engine, events: Counter, aborts: int = 0) -> list[Request]:
    """Step until nothing is left. The first `aborts` requests that are seen loading are aborted and asked again."""
    done = []
    while engine.scheduler.busy:
        done += engine.scheduler.step()
        engine.scheduler.check_integrity()
        loading = [r for r in engine.scheduler.running if r.phase is Phase.LOADING]
        events["steps with concurrent loads"] += len(loading) > 1
        if loading and not loading[-1].preemptions and events["aborts during a load"] < aborts:
            engine.scheduler.abort(loading[-1])
            engine.scheduler.check_integrity()
            engine.scheduler.submit(loading[-1].spec)
            events["aborts during a load"] += 1
    return done


def serve(engine: Engine, specs, events: Counter, aborts: int = 0) -> list[Request]:
    """All of `specs` at once, except the last two, which come when the engine is idle: they are admitted in one step."""
    for spec in specs[:-2]:
        engine.scheduler.submit(spec)
    done = finish(engine, events, aborts)
    for spec in specs[-2:]:
        engine.scheduler.submit(spec)
    return done + finish(engine, events)


@pytest.fixture
def splits(monkeypatch) -> Counter:
    """Counts how often a node is cut, by the tiers it was in."""
    counts, split = Counter(), NodeStore.split

    def counted(store, node, at):
        counts["on the host" if node.cells[0].host is not None else "on the device alone"] += 1
        return split(store, node, at)

    monkeypatch.setattr(NodeStore, "split", counted)
    return counts


@dataclass(frozen=True)
class Reference:
    """How radix_cache served the same requests with the same device memory. Its programs serve the rows, too."""

    engine: Engine
    recorder: LogitRecorder
    done: list[Request]


@pytest.fixture(scope="module")
def reference():
    """The reference of a model and a page size, made once."""
    made: dict[tuple[str, int], Reference] = {}

    def of(model, page: int, vocab: int) -> Reference:
        key = (model.model_id, page)
        if key not in made:
            recorder = LogitRecorder()
            engine = build(model, recorder, CacheConfig(cache_type="radix_cache", page_size=page), SCALES[page])
            made[key] = Reference(engine, recorder, serve(engine, conversations(vocab, page), Counter()))
        return made[key]

    return of


def check_row(model, row: Row, vocab: int, expected: Reference, splits: Counter):
    specs, events = conversations(vocab, row.page), Counter()
    splits.clear()
    recorder = LogitRecorder(forced=expected.recorder.tokens)
    config = CacheConfig(cache_type="unified_radix_cache", page_size=row.page, hicache=row.hicache)
    engine = build(model, recorder, config, SCALES[row.page], like=expected.engine)
    computed_before = engine.runner.tokens_computed
    done = serve(engine, specs, events, aborts=3)
    engine.cache.close()

    worst, places = compare(expected.recorder, recorder)
    assert worst <= LIMIT
    assert places == sum(len(r.output_ids) for r in expected.done)
    assert recorder.tokens == expected.recorder.tokens  # greedy tokens, not only the forced ones
    assert {r.spec.id: r.output_ids for r in done} == {r.spec.id: r.output_ids for r in expected.done}

    # What came from L2, by the requests' own counts, by the cache's, and by what attention did not compute.
    device, host = sum(r.counts.device for r in done), sum(r.counts.host for r in done)
    computed, rest = sum(r.counts.computed for r in done), sum(r.counts.decoded + r.counts.recomputed for r in done)
    assert engine.runner.tokens_computed - computed_before == computed + rest
    assert computed + device + host == sum(r.n_prompt for r in done)
    assert host >= (device + host) / 2
    assert engine.cache.counters.host_loaded_tokens >= host / 2
    # That all this happened on the way, or the comparison would prove nothing.
    assert sum(r.counts.device > 0 and r.counts.host > 0 for r in done) >= 3  # partial overlaps
    assert events["steps with concurrent loads"] >= 1
    assert events["aborts during a load"] == 3
    assert splits.total() >= 3
    assert engine.scheduler.stats.prefill_chunks > len(specs)
    assert engine.cache.counters.device_evicted_tokens > 0


@pytest.mark.parametrize("row", PAIRS, ids=str)
def test_tiny_model(qwen3, row, reference, splits):
    expected = reference(qwen3, row.page, 256)
    check_row(qwen3, row, 256, expected, splits)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in PRODUCT if row not in PAIRS], ids=str)
def test_tiny_model_whole_product(qwen3, row, reference, splits):
    expected = reference(qwen3, row.page, 256)
    check_row(qwen3, row, 256, expected, splits)


@pytest.mark.real_model
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=[pytest.mark.slow] if i else []) for i, row in enumerate(REAL)]
)
def test_smollm2(smollm2, row, reference, splits):
    expected = reference(smollm2, row.page, 40_000)
    check_row(smollm2, row, 40_000, expected, splits)


@pytest.mark.parametrize("pool", ["per_page", "preallocated"])
def test_a_foreign_page_in_host_memory_is_seen(qwen3, pool):
    """The control: were the pages not read from L2, exchanging one of them there would change nothing."""
    page = 16
    text, other = (np.random.default_rng(seed).integers(0, 256, 3 * page + 40).astype(np.int32) for seed in (2, 3))
    specs = [RequestSpec("first", text, 8, Sampling(seed=1)), RequestSpec("foreign", other, 8, Sampling(seed=2))]
    recorder = LogitRecorder()
    config = CacheConfig(cache_type="unified_radix_cache", page_size=page, hicache=HiCacheConfig(host_pool=pool))
    engine = build(qwen3, recorder, config, SCALES[page])
    for spec in specs:
        engine.scheduler.submit(spec)
    finish(engine, Counter())
    first = {place: rows[-1] for place, rows in recorder.logits.items() if place[0] == 1}

    def repeat() -> float:
        """Serve the first prompt again, from L2, and compare with how it was served at first."""
        engine.cache.evict("full", engine.cache.size("full").total)
        request = engine.scheduler.submit(specs[0])
        finish(engine, Counter())
        assert request.counts.host == 5 * page
        return max(kl_divergence(row, recorder.logits[place][-1]) for place, row in first.items())

    assert repeat() <= LIMIT
    engine.cache.evict("full", engine.cache.size("full").total)
    host = cast(Any, engine.cache)._host._pools[0]
    mine, theirs = (host_slots(engine, ids)[1:2] for ids in (text, other))
    [batch] = host.get(theirs).batches()
    host.put(mine, batch.pages, batch.positions.tolist().index(0))
    assert repeat() > 1e-2
    engine.cache.close()


def host_slots(engine: Engine, ids) -> np.ndarray:
    """The slots of host memory that hold `ids`, by page."""
    node, parts = cast("Node | None", engine.cache.match_prefix(ids).handle), []
    while node is not None and node.parent is not None:
        parts.insert(0, np.frombuffer(node.cells[0].host or b"", np.int32))
        node = node.parent
    return np.concatenate(parts)
