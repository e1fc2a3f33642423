"""Ctrl-C as a wish: the run ends after the current step, and reports what was done."""

import os
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

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed: for work that has nothing to report yet."""
        if self.requested:
            raise KeyboardInterrupt

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.check()
        self.requested = True
        # Not print: a signal may arrive in the middle of another one.
        os.write(2, b"\nstopping after this step; once more ends at once\n")
