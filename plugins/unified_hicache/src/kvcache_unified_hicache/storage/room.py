"""Where the pages of a fetch go: the caller's memory, as the guard's workers see it. It says nothing of what the memory is."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Room(Protocol[T_co]):
    """Room for the pages of one request; `number`: a page's place in it. Called on workers, `parts` and `place` for different
    pages at a time. What it raises is logged, and costs these pages.

    A call into a backend that was given up may still write to `parts` when the request has long ended: until whoever holds them
    has let go of them, their memory is used for nothing else.
    """

    def parts(self, number: int) -> Sequence[memoryview] | None:
        """Writable memory that the raw bytes of the page are to be read into, one part after another; None where pages are rather
        placed. What lies there counts only if `finish` is told that the page came."""
        ...

    def place(self, number: int, payload: memoryview) -> None:
        """Copy the raw bytes of the page, which was verified."""
        ...

    def finish(self, came: Sequence[bool]) -> T_co:
        """What becomes of the pages, of which those came; called once, after all others. The request's result."""
        ...
