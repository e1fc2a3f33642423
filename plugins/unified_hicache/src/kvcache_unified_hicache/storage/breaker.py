"""When to leave a failing backend alone, and when to try it again. It sees successes and failures, no calls and no threads.

After some failures in a row it opens: nothing is asked for a while. Then one probe may go through; its answer closes the breaker
or opens it again. Reads and writes have one each: a full disk must not stop reading.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, final


class Word(StrEnum):
    """How a backend is, from good to bad."""

    OK = "ok"
    FAILING = "failing"
    RETRYING = "retrying"
    OPEN = "open"


class GuardState(NamedTuple):
    """For reports. `since`: when `word` became true, by the guard's clock. `last_error`: text of the last failure, which stays
    after the backend has recovered; empty if there was none."""

    word: Word
    since: float
    last_error: str


@final
class Breaker:
    """Only used on the owner thread."""

    def __init__(self, failures_to_open: int, retry_after: float, clock: Callable[[], float]) -> None:
        """`failures_to_open`: calls that fail in a row. `retry_after`: seconds between opening and a probe."""
        self._limit = failures_to_open
        self._retry_after = retry_after
        self._clock = clock
        self._failures = 0
        self._state = GuardState(Word.OK, clock(), "")

    @property
    def state(self) -> GuardState:
        return self._state

    @property
    def closed(self) -> bool:
        """Whether calls may be made."""
        return self._state.word in (Word.OK, Word.FAILING)

    @property
    def probe_due_in(self) -> float | None:
        """Seconds until a probe may go out; None while it is not open."""
        if self._state.word is not Word.OPEN:
            return None
        return max(0.0, self._state.since + self._retry_after - self._clock())

    def probing(self) -> None:
        """A probe is on its way; it ends with `probed` or `put_off`."""
        self._become(Word.RETRYING, self._state.last_error)

    def put_off(self) -> None:
        """The probe was not made: the next one is due after the usual time."""
        if self._state.word is Word.RETRYING:
            self._become(Word.OPEN, self._state.last_error)

    def probed(self, error: str | None) -> None:
        """The probe failed with `error`, or succeeded."""
        if error is not None:
            self._become(Word.OPEN, error)
            return
        self._failures = 0
        self._become(Word.OK, self._state.last_error)

    # A call that was made before it opened may end at any time: that says nothing about those that failed after it, and only
    # a probe's answer counts.

    def succeeded(self, complaint: str = "") -> None:
        """A call of the cache's own. `complaint`: of one that did a part of its work, the last error for reports."""
        if self.closed:
            self._failures = 0
            self._become(Word.OK, complaint or self._state.last_error)

    def failed(self, error: str) -> None:
        """A call of the cache's own."""
        if self.closed:
            self._failures += 1
            self._become(Word.OPEN if self._failures >= self._limit else Word.FAILING, error)

    def _become(self, word: Word, error: str) -> None:
        since = self._state.since if word is self._state.word else self._clock()
        self._state = GuardState(word, since, error)
