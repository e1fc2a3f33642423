"""What a person sees of a run: a moving line on a terminal, one line a finished request elsewhere, tables at the end.

Progress and warnings go to standard error, results to standard output.
"""

import logging
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from kvcache_core.config.model import HiCacheConfig
from kvcache_engine.engine import Engine
from kvcache_engine.report import cached_text, make_console, printable, request_table, summary_table, tiers_text
from kvcache_engine.results import RequestResult
from kvcache_engine.run import RunReport, Working
from kvcache_engine.tiers import tier_sizes

_LONG = 2.0
"""Seconds without a request that is not loading, after which a load is worth a line."""


@final
class ProgressView:
    """A `View`, and the `Progress` of loading a model. `quiet` shows nothing but warnings. `tables_aside`: standard output is
    taken by something else, so tables go to standard error as well."""

    def __init__(self, *, quiet: bool, tables_aside: bool = False) -> None:
        self._quiet = quiet
        self._err = make_console(stderr=True)
        self._out = make_console(stderr=tables_aside)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=self._err, transient=True, disable=quiet or not self._err.is_terminal)
        self._task: TaskID | None = None
        self._said = ""
        self._loading_since: float | None = None
        self._warnings = _Warnings(self._warn)

    def __enter__(self) -> "ProgressView":
        # What the core and plugins have to say comes through logging; the root logger is the application's, which we are.
        logging.getLogger().addHandler(self._warnings)
        self._progress.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._progress.stop()
        logging.getLogger().removeHandler(self._warnings)

    def loading(self, what: str, done: int, total: int) -> None:
        """A model is being loaded: `done` of `total` parts."""
        self._move(what, done, total)
        if not self._err.is_terminal and what != self._said:
            self._say(f"{what} ...")
        self._said = what

    def ready(self, engine: Engine, expected: int) -> None:
        model, resolution = engine.model, engine.resolution
        self._say(f"model   {model.model_id} ({model.config.architecture}, {model.config.layers} layers)")
        self._say(f"cache   {resolution.cache_type}, page size {resolution.config.page_size}; see `kvcache config explain`")
        self._say(f"tiers   {tiers_text(tier_sizes(engine.cache, engine.page_bytes))}")
        if resolution.config.hicache is not None:
            self._say(f"hicache {_settings(resolution.config.hicache)}")
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task("serving", total=expected, note="")

    def finished(self, result: RequestResult, done: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done)
        if self._quiet:
            return
        if result.error is not None:
            self._err.print(Text(printable(f"{result.id}: {result.error}"), style="red"))
        else:
            self._err.print(Text(printable(f"{result.id}: {cached_text(result)}, {len(result.output_tokens)} tokens answered")))

    def working(self, state: Working) -> None:
        loading = f"{state.loading} of them loading {state.pages_loading} pages, " if state.loading else ""
        note = f"{state.running} running, {loading}{state.waiting} waiting, {state.tokens} tokens through the model"
        if self._task is not None:
            self._progress.update(self._task, note=note)
        if not state.loading or state.loading < state.running:
            self._loading_since = None
        elif self._loading_since is None:
            self._loading_since = monotonic()
        elif monotonic() - self._loading_since > _LONG:
            # Nothing else runs meanwhile, so without a terminal nobody would know why nothing happens.
            self._loading_since = monotonic()
            if not self._err.is_terminal:
                self._say(f"still loading: {note}")

    def show(self, report: RunReport) -> None:
        """The table of requests and the summary, on standard output."""
        self._out.print(request_table(report.requests))
        self._out.print(summary_table(report.summary))

    def _move(self, what: str, done: int, total: int | None = None) -> None:
        if self._task is None:
            self._task = self._progress.add_task(what, total=total, note="")
        self._progress.update(self._task, description=what, completed=done, total=total)

    def _warn(self, text: str) -> None:
        self._err.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._err.print(Text(text))


def _settings(hicache: HiCacheConfig) -> str:
    settings = hicache.write_settings
    return (
        f"L1 to L2 on {settings.backup_on}, L2 to L3 {settings.persist_on}; {hicache.host_pool} host memory,"
        f" {hicache.async_impl} waits; storage {'none' if hicache.storage is None else hicache.storage.kind}"
    )


@final
class _Warnings(logging.Handler):
    """Hands every warning and error that is logged to `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))
