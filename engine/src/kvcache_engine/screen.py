"""The terminal, or what stands for it: lines, one moving bar, and the warnings that anything logs. It knows no run.

Progress and warnings go to standard error, results to standard output.
"""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import final

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from kvcache_engine.interrupt import Interrupt
from kvcache_engine.report import make_console, printable


@final
class Screen:
    """A context. `quiet` shows nothing but warnings. `tables_aside`: standard output is taken by something else, so results go to
    standard error as well."""

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
        self._warnings = _Warnings(self._warn)

    def __enter__(self) -> "Screen":
        # What the core and plugins have to say comes through logging; the root logger is the application's, which we are.
        logging.getLogger().addHandler(self._warnings)
        # Not even stopped where it shows nothing: some versions of rich end with an empty line all the same.
        if not self._progress.disable:
            self._progress.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if not self._progress.disable:
            self._progress.stop()
        logging.getLogger().removeHandler(self._warnings)

    @property
    def moves(self) -> bool:
        """Whether there is a bar to be seen; without one, what goes on has to be said in lines."""
        return self._err.is_terminal and not self._quiet

    def say(self, text: str, style: str = "") -> None:
        """A line of its own."""
        if not self._quiet:
            self._err.print(Text(printable(text), style=style))

    def begin(self, what: str, total: int) -> None:
        """Replace the bar by one for `what`, from nothing."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=total, note="")

    def move(self, done: int | None = None, note: str | None = None) -> None:
        """Move the bar, or change what stands beside it."""
        if self._task is None:
            return
        if done is not None:
            self._progress.update(self._task, completed=done)
        if note is not None:
            self._progress.update(self._task, note=note)

    def show(self, *parts: RenderableType) -> None:
        """Results, on standard output."""
        if self._quiet:
            return
        self._out.print(*parts, sep="\n")

    def _warn(self, text: str) -> None:
        self._err.print(Text(f"warning: {text}", style="yellow"), soft_wrap=True)


@final
class LoadingModel:
    """The `Progress` of loading a model: a bar, or a line for each kind of work. Ctrl-C ends it, with nothing to report yet."""

    def __init__(self, screen: Screen, interrupt: Interrupt) -> None:
        self._screen = screen
        self._interrupt = interrupt
        self._said = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        self._interrupt.check()
        if what != self._said:
            self._said = what
            self._screen.begin(what, total)
            if not self._screen.moves:
                self._screen.say(f"{what} ...")
        self._screen.move(done)


@final
class _Warnings(logging.Handler):
    """Hands every warning and error that is logged to `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))
