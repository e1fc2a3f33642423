"""One run of the engine over a prompts file, from configuration to report. It prints nothing; a view is told what goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import jax

from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.resolve import resolve
from kvcache_core.registry.default import default_registry
from kvcache_engine.config import EngineConfig
from kvcache_engine.conversations import Conversations
from kvcache_engine.engine import Engine, build_engine, load_engine_model
from kvcache_engine.prompts_file import PromptLine
from kvcache_engine.results import RequestResult, RunSummary, totals


class View(Protocol):
    """Where progress goes."""

    def loading(self, what: str, done: int, total: int) -> None: ...
    def ready(self, engine: Engine, cache_type: str, expected: int) -> None: ...
    def finished(self, result: RequestResult, done: int) -> None: ...
    def working(self, waiting: int, running: int, tokens: int) -> None: ...


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


def prepare_jax(engine: EngineConfig) -> None:
    """Point JAX at the persistent compilation cache, so that the next process compiles nothing again."""
    if engine.compilation_cache is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(engine.compilation_cache).expanduser()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def serve(loaded: LoadedConfig, config: EngineConfig, lines: Sequence[PromptLine], view: View, stop: Stop) -> RunReport:
    """Load the model, build the cache, answer everything in `lines`, or as much as there is until `stop` is requested.

    Raises:
        ConfigError, PluginError, EngineError: nothing could be served; a bad request is part of the report instead.
    """
    model = load_engine_model(config, loaded.folder, view.loading)
    resolution = resolve(loaded.config, model.spec, default_registry())
    engine = build_engine(loaded.config, config, model)
    try:
        started = monotonic()
        conversations = Conversations(lines, engine.scheduler, model.tokenizer, config)
        view.ready(engine, resolution.cache_type, conversations.expected)
        for result in conversations.results():
            view.finished(result, conversations.finished)
        while not conversations.done and not stop.requested:
            for result in conversations.step():
                view.finished(result, conversations.finished)
            scheduler = engine.scheduler
            view.working(len(scheduler.waiting), len(scheduler.running), engine.runner.tokens_computed)
        conversations.abort()
        results = conversations.results()
        summary: RunSummary = {
            **totals(results),
            "cache_type": resolution.cache_type,
            "page_size": loaded.config.page_size,
            "model": {"id": model.model_id, "version": model.model_version},
            "wall_s": monotonic() - started,
            "attention_tokens": engine.runner.tokens_computed,
            "compiled_programs": engine.compile_count,
            "scheduler": asdict(engine.scheduler.stats),
            "cache": engine.cache.counters.as_dict(),
        }
        return RunReport(results, summary)
    finally:
        engine.cache.close()
