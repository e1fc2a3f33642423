"""Ctrl-C as a wish: the run ends after the current step, and reports what was done."""

import signal
from types import FrameType
from typing import Any, final


@final
class Interrupt:
    """A context in which Ctrl-C sets `requested`, so that no step is cut in the middle; a second one ends the program at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
