"""What a person sees of a run: a moving line on a terminal, one line a finished request elsewhere, tables at the end.

Progress goes to standard error, results to standard output.
"""

from types import TracebackType
from typing import final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from kvcache_engine.engine import Engine
from kvcache_engine.report import make_console, request_table, summary_table
from kvcache_engine.results import RequestResult
from kvcache_engine.run import RunReport


@final
class ProgressView:
    """A `View`. `quiet` shows nothing at all."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._err = make_console(stderr=True)
        self._out = make_console()
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

    def __enter__(self) -> "ProgressView":
        self._progress.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._progress.stop()

    def loading(self, what: str, done: int, total: int) -> None:
        self._move(what, done, total)
        if not self._err.is_terminal and what != self._said:
            self._say(f"{what} ...")
        self._said = what

    def ready(self, engine: Engine, cache_type: str, expected: int) -> None:
        model, size = engine.model, engine.cache.size("full")
        self._say(f"model   {model.model_id} ({model.config.architecture}, {model.config.layers} layers)")
        self._say(f"cache   {cache_type}, {size.total} pages on the device; see `kvcache config explain`")
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task("serving", total=expected, note="")

    def finished(self, result: RequestResult, done: int) -> None:
        self._move("serving", done)
        if self._quiet:
            return
        if result.error is not None:
            self._err.print(Text(f"{result.id}: {result.error}", style="red"))
        else:
            cached = f"{result.cached} of {result.prompt_tokens} prompt tokens cached"
            self._err.print(Text(f"{result.id}: {cached}, {len(result.output_tokens)} tokens answered"))

    def working(self, waiting: int, running: int, tokens: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, note=f"{running} running, {waiting} waiting, {tokens} tokens through the model")

    def show(self, report: RunReport) -> None:
        """The table of requests and the summary, on standard output."""
        self._out.print(request_table(report.requests))
        self._out.print(summary_table(report.summary))

    def _move(self, what: str, done: int, total: int | None = None) -> None:
        if self._task is None:
            self._task = self._progress.add_task(what, total=total, note="")
        self._progress.update(self._task, description=what, completed=done, total=total)

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._err.print(Text(text))
