"""One thread for all calls into the client library, and what they share with its callers: one at a time.

Four threads were slower than one. A call that hangs keeps the lane until it ends; those that wait for it fail at their own
deadline. A daemon thread, because a call that never ends must not keep the interpreter. It does not know what is called.
"""

import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast, final

T = TypeVar("T")


@final
class _Call:
    """One call. Whoever comes last, the thread or a caller that has given up, frees the lane."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> bool:
        """Gives whether the caller has gone meanwhile."""
        try:
            self.result = self._work()
        except BaseException as error:  # foreign code: the caller raises it
            self.error = error
        with self._lock:
            self._ended.set()
            return self._abandoned

    def wait(self, seconds: float) -> bool:
        """Gives whether it has ended; if not, nobody waits any more."""
        if self._ended.wait(max(0.0, seconds)):
            return True
        with self._lock:
            self._abandoned = not self._ended.is_set()
            return not self._abandoned


@final
class Turn:
    """The right to call, until `until` on the monotonic clock."""

    def __init__(self, calls: "queue.SimpleQueue[_Call | None]", until: float, late: str) -> None:
        """`late`: what is said when it is over."""
        self._calls = calls
        self._until = until
        self._late = late
        self.lost = False

    def call(self, work: Callable[[], T]) -> T:
        """Raises TimeoutError, and then the turn is over; or what `work` raises."""
        call = _Call(work)
        if time.monotonic() >= self._until:
            raise TimeoutError(self._late)
        self._calls.put(call)
        if not call.wait(self._until - time.monotonic()):
            self.lost = True
            raise TimeoutError(self._late)
        if call.error is not None:
            raise call.error if isinstance(call.error, Exception) else RuntimeError(repr(call.error))
        return cast(T, call.result)


@final
class Lane:
    """Thread safe. The thread is started with the first turn. `whom`: who is called, for errors."""

    def __init__(self, whom: str) -> None:
        self._whom = whom
        self._free = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @contextmanager
    def turn(self, timeout: float) -> Generator[Turn]:
        """Wait for a turn; `timeout` seconds are for that and for all its calls. Raises TimeoutError."""
        until = time.monotonic() + timeout
        if not self._free.acquire(timeout=timeout):
            raise TimeoutError(f"earlier calls to {self._whom} took all of {timeout:g} s")
        turn = Turn(self._calls, until, f"no answer from {self._whom} within {timeout:g} s")
        try:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="kvcache-mooncake", daemon=True)
                self._thread.start()
            yield turn
        finally:
            if not turn.lost:
                self._free.release()

    def end(self) -> None:
        """The thread ends after what it does now."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.run():
                self._free.release()
            del call  # it holds what it was given, and the next one may be long in coming
