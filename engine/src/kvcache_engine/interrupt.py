"""Ctrl-C, or the SIGTERM of a service manager, as a wish: the run ends after the current step, and reports what was done."""

import os
import signal
from types import FrameType
from typing import Any, Final, final

from kvcache_core.interrupted import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@final
class Interrupt:
    """A context in which either signal sets `requested`, so that no step is cut in the middle; a second one ends the program at
    once. `status`: what a shell would say of a process that the signal ended, 130 or 143."""

    def __init__(self) -> None:
        self.requested = False
        self.status = 0
        self._before: list[Any] = []

    def __enter__(self) -> "Interrupt":
        self._before = [signal.signal(number, self._on_signal) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, before)

    def check(self) -> None:
        """Raises Interrupted, with `status`, if it was requested: for work that has nothing to report yet."""
        if self.requested:
            raise Interrupted(self.status)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.check()
        self.requested, self.status = True, 128 + number
        # Not print: a signal may arrive in the middle of another one.
        os.write(2, b"\nstopping after this step; once more ends at once\n")
