"""What a person sees of a run: what is served and with which tiers, a line a finished request, tables at the end."""

from time import monotonic
from typing import final

from kvcache_core.config.model import HiCacheConfig
from kvcache_engine.engine import Engine
from kvcache_engine.report import cached_text, request_table, summary_table, tiers_text
from kvcache_engine.results import RequestResult
from kvcache_engine.run import RunReport, Working
from kvcache_engine.screen import Screen
from kvcache_engine.tiers import tier_sizes

LONG = 2.0
"""Seconds of waiting for transfers, with nothing to compute, after which that is worth a line."""


@final
class ProgressView:
    """A `View` on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._idle_since: float | None = None
        self._persisting = False

    def ready(self, engine: Engine, expected: int) -> None:
        for line in start_up_lines(engine):
            self._screen.say(line)
        self._screen.begin("serving", expected)

    def finished(self, result: RequestResult, done: int) -> None:
        self._screen.move(done)
        if result.error is not None:
            self._screen.say(f"{result.id}: {result.error}", "red")
        else:
            self._screen.say(f"{result.id}: {cached_text(result)}, {len(result.output_tokens)} tokens answered")

    def working(self, state: Working) -> None:
        loading = f"{state.loading} of them loading {state.pages_loading} pages, " if state.loading else ""
        fetching = f", {state.fetching} of them for storage" if state.fetching else ""
        note = f"{state.running} running, {loading}{state.waiting} waiting{fetching}, {state.tokens} tokens through the model"
        self._screen.move(note=note)
        if state.loading < state.running or not (state.loading or state.fetching):
            self._idle_since = None
            return
        # Nothing is computed meanwhile, so without a bar nobody would know why nothing happens.
        self._wait(f"still {'loading' if state.loading else 'waiting for storage'}: {note}")

    def persisting(self, stored: int, remaining: int) -> None:
        if not self._persisting:
            self._persisting, self._idle_since = True, None
            if remaining:
                self._screen.begin("storing pages", stored + remaining)
                if not self._screen.moves:
                    self._screen.say(f"storing {remaining} pages ... (Ctrl-C leaves the rest)")
        self._screen.move(stored, note=f"{remaining} pages left; Ctrl-C leaves them")
        if remaining:
            self._wait(f"still storing: {stored} pages stored, {remaining} left")

    def _wait(self, what: str) -> None:
        now = monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > LONG:
            self._idle_since = now
            if not self._screen.moves:
                self._screen.say(what)

    def show(self, report: RunReport) -> None:
        """The table of requests and the summary."""
        self._screen.show(request_table(report.requests), summary_table(report.summary))


def start_up_lines(engine: Engine) -> list[str]:
    """The model, and what resolution and sizing came to."""
    model, resolution = engine.model, engine.resolution
    lines = [
        f"model   {model.model_id} ({model.config.architecture}, {len(model.config.layers)} layers)",
        f"cache   {resolution.cache_type}, page size {resolution.config.page_size}; see `kvcache config explain`",
        f"tiers   {tiers_text(tier_sizes(engine.cache, engine.page_bytes))}",
    ]
    if resolution.config.hicache is not None:
        lines.append(f"hicache {_settings(resolution.config.hicache)}")
    return lines


def _settings(hicache: HiCacheConfig) -> str:
    settings = hicache.write_settings
    storage = "none" if hicache.storage is None else hicache.storage.kind
    if hicache.storage is not None and settings.persist_on == "never":
        storage += ", which is read and never written"
    return (
        f"L1 to L2 on {settings.backup_on}, L2 to L3 {_when(settings.persist_on)}; {hicache.host_pool} host memory,"
        f" {hicache.async_impl} waits; storage {storage}"
    )


def _when(moment: str) -> str:
    return moment if moment == "never" else f"on {moment}"
