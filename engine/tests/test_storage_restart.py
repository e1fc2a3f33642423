"""RFC H2: an engine that starts on a filled storage computes exactly what a plain page trie says, and answers the same."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from kvcache_conformance import storage_texts
from kvcache_conformance.logit_recorder import LogitRecorder, compare, kl_divergence
from kvcache_conformance.page_trie import PageTrie
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.tokens import floor_page
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.request import Request, RequestSpec, Sampling
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.page_keys import PageKeys, component_identity, storage_keys

LIMIT = 1e-6
DEVICE_TOKENS = {1: 160, 16: 256, 64: 768}
"""By page size: L1 holds one or two of the texts, and L2, twice as large, not all of them."""


def texts(page: int) -> list[RequestSpec]:
    return [spec_of(text) for text in storage_texts.texts(page)]


def later(page: int) -> list[RequestSpec]:
    """The same texts again, and some that go on after them or leave them in the middle."""
    return [spec_of(text) for text in storage_texts.later_texts(storage_texts.texts(page), page)]


def spec_of(text: storage_texts.Text) -> RequestSpec:
    return RequestSpec(text.id, text.ids, text.max_tokens, Sampling(seed=text.seed), extra_key=text.extra_key)


def build(model, recorder, page: int, root: Path | None, on: str = "evict", ratio: float = 2.0, like=None) -> Engine:
    """Without `root`: chunk_cache, which reuses nothing."""
    hicache = {
        "storage": {"kind": "file", "path": str(root)},
        "ratio": ratio,
        "backup_on": "insert",
        "persist_on": on,
        "prefetch_threshold": page,
        "prefetch_timeout": None,
    }
    values = {"cache_type": "chunk_cache"} if root is None else {"cache_type": "unified_radix_cache", "hicache": hicache}
    config = EngineConfig(model="test", device_tokens=DEVICE_TOKENS[page], chunk_tokens=64, max_running=1, compilation_cache=None)
    return build_engine(CacheConfig.model_validate({"page_size": page, **values}), config, model, sampler=recorder, like=like)


def serve(engine: Engine, spec: RequestSpec) -> Request:
    request = engine.scheduler.submit(spec)
    while engine.scheduler.busy:
        engine.scheduler.step()
        engine.scheduler.check_integrity()
    assert request.error is None
    assert request.counts.cached + request.counts.computed == request.n_prompt
    return request


def end(engine: Engine) -> None:
    """As a run ends: everything is stored, and nothing was given up on the way."""
    report = engine.cache.persist(30.0)
    assert (report.remaining, report.dropped) == (0, {})
    assert not engine.cache.counters.dropped
    assert engine.cache.counters.storage_state == "ok"
    engine.cache.close()


@pytest.fixture(scope="module")
def alone():
    """By page size: an engine without reuse that lends its programs, and what it drew for everything in `later`."""
    made: dict[int, tuple[Engine, LogitRecorder, dict[str, list[int]]]] = {}

    def of(model, page: int):
        if page not in made:
            recorder = LogitRecorder()
            engine = build(model, recorder, page, None)
            made[page] = (engine, recorder, {s.id: serve(engine, s).output_ids for s in later(page)})
        return made[page]

    return of


@pytest.mark.parametrize("on", ["evict", "insert"])
@pytest.mark.parametrize("page", [1, 16, 64])
def test_what_is_computed_after_a_restart_is_what_a_page_trie_says(qwen3, alone, tmp_path, page, on):
    like, reference, answers = alone(qwen3, page)
    trie = PageTrie(page)

    def give(request: Request) -> None:
        ids = request.ids()[:-1]  # the last token is drawn and never computed
        trie.add(ids[: floor_page(len(ids), page)], request.spec.extra_key)

    first = build(qwen3, LogitRecorder(), page, tmp_path, on, like=like)
    for spec in texts(page):
        give(serve(first, spec))
    assert first.cache.counters.host_evicted_tokens > 0  # L2 was too small, so storage holds what nothing else does
    assert on == "insert" or first.cache.counters.storage_written_tokens > 0
    end(first)

    # With room for everything in L2: then a page that is on its way to storage is still found in memory.
    recorder = LogitRecorder(forced=reference.tokens)
    second = build(qwen3, recorder, page, tmp_path, on, ratio=12.0, like=like)
    before = second.runner.tokens_computed
    done = []
    for spec in later(page):
        known = trie.match(spec.prompt_ids[:-1], spec.extra_key)
        request = serve(second, spec)
        assert request.counts.computed == request.n_prompt - known, spec.id
        assert request.output_ids == answers[spec.id], spec.id
        give(request)
        done.append(request)
    counts = [request.counts for request in done]
    assert sum(c.storage for c in counts) == second.cache.counters.storage_loaded_tokens > 10 * page
    assert second.runner.tokens_computed - before == sum(c.computed + c.decoded + c.recomputed for c in counts)
    assert any(c.storage and c.device for c in counts)  # partly in memory, partly in storage
    end(second)
    worst, places = compare(reference, recorder)
    assert worst <= LIMIT
    assert places == len(reference.tokens)


def test_another_page_under_a_key_is_seen_in_the_logits(qwen3, alone, tmp_path):
    """The control: were the pages not read from storage, exchanging one of them there would change nothing."""
    page = 16
    like, _, _ = alone(qwen3, page)
    recorder = LogitRecorder()
    specs = texts(page)
    mine, other = specs[0], specs[1]
    first = build(qwen3, recorder, page, tmp_path, like=like)
    for spec in (mine, other):
        serve(first, spec)
    end(first)
    drawn = {place: rows[-1] for place, rows in recorder.logits.items() if place[0] == mine.sampling.seed}
    forced = LogitRecorder(forced=recorder.tokens)

    def again() -> float:
        """KL of the same request in a new engine, whose prompt comes from storage."""
        forced.logits.clear()
        engine = build(qwen3, forced, page, tmp_path, like=like)
        request = serve(engine, mine)
        assert request.counts.storage == (request.n_prompt - 1) // page * page
        assert not engine.cache.counters.misses
        engine.cache.close()
        return max(kl_divergence(row, forced.logits[place][-1]) for place, row in drawn.items())

    assert again() <= LIMIT
    frame = PageFrame(first.pools["full"].page_arrays())
    (key, path), (their_key, their_path) = (stored_page(first, tmp_path, spec, 2) for spec in (mine, other))
    foreign = frame.new_value()
    frame.payload_of(foreign)[:] = frame.open(their_key, their_path.read_bytes())
    frame.seal(key, foreign)
    path.write_bytes(foreign)
    assert again() > 1e-2


def stored_page(engine: Engine, root: Path, spec: RequestSpec, ordinal: int) -> tuple[str, Path]:
    """Key and file of one page of a prompt."""
    page = engine.resolution.config.page_size
    keys = PageKeys(engine.model.spec, page)
    digests = keys.chain(keys.root(spec.extra_key), spec.prompt_ids[: (ordinal + 1) * page].tobytes())
    key = storage_keys(digests, component_identity("full", engine.pools["full"].identity))[ordinal]
    [path] = root.glob(f"*/{page}/{key[:2]}/{key}.npy")
    return key, path


def test_files_are_where_the_format_says_and_open_with_numpy(qwen3, alone, tmp_path):
    page = 16
    like, _, _ = alone(qwen3, page)
    engine = build(qwen3, LogitRecorder(), page, tmp_path, like=like)
    spec = texts(page)[0]
    serve(engine, spec)
    end(engine)
    arrays = Counter()
    for ordinal in range((len(spec.prompt_ids) - 1) // page):
        key, path = stored_page(engine, tmp_path, spec, ordinal)
        payload = np.load(path)
        assert payload.dtype == np.uint8
        assert payload.nbytes == engine.page_bytes["full"]
        assert bytes(PageFrame(engine.pools["full"].page_arrays()).open(key, path.read_bytes())) == payload.tobytes()
        arrays[payload.tobytes()] += 1
    assert len(arrays) == arrays.total() > 3
