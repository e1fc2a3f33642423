"""One line on the terminal that is written again and again. Nothing at all where nobody watches."""

import sys
import time
from types import TracebackType
from typing import Final, Self, final

INTERVAL: Final = 0.2
"""Seconds between two lines: more often is only slower."""


@final
class Progress:
    """A context; the line is wiped at its end, so that results stand alone."""

    def __init__(self, *, quiet: bool) -> None:
        self._shown = sys.stderr.isatty() and not quiet
        self._next = 0.0
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._width:
            self._write("")

    def show(self, text: str) -> None:
        now = time.monotonic()
        if self._shown and now >= self._next:
            self._next = now + INTERVAL
            self._write(text)

    def _write(self, text: str) -> None:
        line = "\r" + text.ljust(self._width) + ("" if text else "\r")
        # Before it is seen: Ctrl-C may come at any moment from here on, and the line is wiped then as well.
        self._width = len(text)
        sys.stderr.write(line)
        sys.stderr.flush()
