"""One run of an engine over a prompts file, and its report. It prints nothing; a view is told what goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import jax

from kvcache_core.errors import ConfigError
from kvcache_engine.config import EngineConfig
from kvcache_engine.conversations import Conversations
from kvcache_engine.engine import Engine
from kvcache_engine.persisting import Persisted, persist
from kvcache_engine.prompts_file import PromptLine
from kvcache_engine.request import Phase
from kvcache_engine.results import RequestResult, RunSummary, totals
from kvcache_engine.tiers import movements, tier_sizes


@dataclass(frozen=True, slots=True)
class Working:
    """What goes on between two steps. `fetching`: waiting requests for which storage is read; `loading`: running requests that
    wait for pages of host memory, `pages_loading` in all; `tokens`: how many the model has computed so far."""

    waiting: int
    fetching: int
    running: int
    loading: int
    pages_loading: int
    tokens: int


class View(Protocol):
    """Where progress goes."""

    def ready(self, engine: Engine, expected: int) -> None: ...
    def finished(self, result: RequestResult, done: int) -> None: ...
    def working(self, state: Working) -> None: ...
    def persisting(self, stored: int, remaining: int) -> None:
        """Pages that are in storage since the last request ended, and pages still to be sent there."""
        ...


class Stop(Protocol):
    """Asked before every step whether to go on."""

    @property
    def requested(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class RunReport:
    """`requests` in request order; `summary` JSON-ready."""

    requests: Sequence[RequestResult]
    summary: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"requests": [result.as_dict() for result in self.requests], "summary": dict(self.summary)}


def prepare_jax(engine: EngineConfig, folder: Path) -> None:
    """Point JAX at the persistent compilation cache, so that the next process compiles nothing again. `folder`: the configuration
    file's, to which the cache's path is relative.

    Raises ConfigError when the cache's folder cannot be made.
    """
    if engine.compilation_cache is None:
        return
    cache = folder / Path(engine.compilation_cache).expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"cannot make the folder {cache}: {error.strerror}; give another one, or null for no cache"
        raise ConfigError(text, path=("engine", "compilation_cache")) from error
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def serve(engine: Engine, config: EngineConfig, lines: Sequence[PromptLine], view: View, stop: Stop) -> RunReport:
    """Answer everything in `lines`, or as much as there is until `stop` is requested; then have stored what storage does not have
    yet, and close the engine's cache. A `stop` that is requested while pages are stored ends that.

    A bad request is part of the report; what is raised is a fault of the engine. A KeyboardInterrupt leaves the cache as it is:
    closing could wait for transfers, and nobody wants to wait any longer.
    """
    try:
        report = _serve(engine, config, lines, view, stop)
    except Exception:
        engine.cache.close()
        raise
    engine.cache.close()
    return report


def _serve(engine: Engine, config: EngineConfig, lines: Sequence[PromptLine], view: View, stop: Stop) -> RunReport:
    compiled, computed = engine.compile_count, engine.runner.tokens_computed
    started = monotonic()
    conversations = Conversations(lines, engine.scheduler, engine.model.tokenizer, config)
    view.ready(engine, conversations.expected)
    for result in conversations.results():
        view.finished(result, conversations.finished)
    while not conversations.done and not stop.requested:
        for result in conversations.step():
            view.finished(result, conversations.finished)
        view.working(_working(engine))
    conversations.abort()
    wall = monotonic() - started
    persisted = _persist(engine, view, stop)
    results = conversations.results()
    summary: RunSummary = {
        **totals(results),
        "cache_type": engine.resolution.cache_type,
        "page_size": engine.resolution.config.page_size,
        "model": {"id": engine.model.model_id, "version": engine.model.model_version},
        "wall_s": wall,
        "attention_tokens": engine.runner.tokens_computed - computed,
        "compiled_programs": engine.compile_count - compiled,
        "scheduler": asdict(engine.scheduler.stats),
        "cache": engine.cache.counters.as_dict(),
        "tiers": tier_sizes(engine.cache, engine.page_bytes),
        "movements": movements(engine.cache.counters),
        "storage": _storage_kind(engine),
        "persisted": persisted,
    }
    return RunReport(results, summary)


def _persist(engine: Engine, view: View, stop: Stop) -> Persisted | None:
    hicache = engine.resolution.config.hicache
    if hicache is None or hicache.storage is None:
        return None
    # Who interrupts the serving wants to see what there is; what was computed so far is still worth keeping.
    interrupted = stop.requested
    return persist(engine.cache, hicache.persist_timeout, lambda: stop.requested and not interrupted, view.persisting)


def _storage_kind(engine: Engine) -> str | None:
    hicache = engine.resolution.config.hicache
    return None if hicache is None or hicache.storage is None else hicache.storage.kind


def _working(engine: Engine) -> Working:
    running = engine.scheduler.running
    loading = sum(request.phase is Phase.LOADING for request in running)
    pages = sum(engine.cache.size(name).in_flight for name in engine.pools) if loading else 0
    return Working(
        len(engine.scheduler.waiting), engine.scheduler.fetching, len(running), loading, pages, engine.runner.tokens_computed
    )
