"""Ctrl-C, or the SIGTERM of a service manager, as a wish: the run ends after what is under way, and reports what was done.

Nothing is raised where a signal arrives: Python drops what a handler raises in a destructor or in a callback of the garbage
collector, and jax has one. A second signal ends the process from a thread of its own, since the handlers of Python wait until the
main thread comes back from the compiler. It knows no run.
"""

import os
import select
import signal
from contextlib import suppress
from threading import Thread
from time import monotonic
from types import FrameType
from typing import Any, Final, final

from kvcache_core.interrupted import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

SAME: Final = 0.05
"""Seconds after a signal in which others are the same wish: `timeout`, for one, signals the process and then its whole group."""

_SAID: Final = b"\nstopping after what is under way; once more ends at once\n"
_SHOW_CURSOR: Final = b"\x1b[?25h"


@final
class Interrupt:
    """A context, to be entered once and on the main thread, in which either signal sets `requested`, so that no step is cut in
    the middle; a second one ends the process at once, as `kill -9` would. `status`: what a shell would say of a process that the
    signal ended, 130 or 143."""

    def __init__(self) -> None:
        self.requested = False
        self.status = 0
        self._before: list[Any] = []
        self._wakeup_before = -1
        # The system's own handler writes the number of each signal there, whatever the interpreter is doing.
        self._arrived, self._arriving = os.pipe()
        os.set_blocking(self._arriving, False)
        self._watcher = Thread(target=self._watch, name="kvcache-interrupt", daemon=True)

    def __enter__(self) -> "Interrupt":
        self._wakeup_before = signal.set_wakeup_fd(self._arriving, warn_on_full_buffer=False)
        self._before = [signal.signal(number, self._on_signal) for number in SIGNALS]
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._arriving)
        self._watcher.join()
        os.close(self._arrived)

    def check(self) -> None:
        """Raises Interrupted, with `status`, if it was requested: for work that has nothing to report yet."""
        if self.requested:
            raise Interrupted(self.status)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self.requested:
            self.requested, self.status = True, 128 + number

    def _watch(self) -> None:
        if self._next() is None:
            return
        until = monotonic() + SAME
        while (left := until - monotonic()) > 0 and select.select([self._arrived], [], [], left)[0] and os.read(self._arrived, 1):
            pass
        _write(_SAID)
        number = self._next()
        if number is not None:
            if os.isatty(2) and os.environ.get("TERM") != "dumb":
                _write(_SHOW_CURSOR)  # a bar hides it
            os._exit(128 + number)

    def _next(self) -> int | None:
        """Wait for one of our signals; None when the context is over."""
        while arrived := os.read(self._arrived, 1):
            if arrived[0] in SIGNALS:
                return arrived[0]
        return None


def _write(text: bytes) -> None:
    # Not print: another thread may be in the middle of one. And whoever reads us may have stopped, or gone.
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text)
