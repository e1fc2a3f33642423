"""What the storage is known to have of one cell's data: a mark for each page, by position, so that splits need not know.

A mark is set by the storage's own answers and by nothing else. The parts of a node that is cut share one object.
"""

from collections.abc import Iterable
from typing import Final, final

from kvcache_radix.node import StoredMarks

ABSENT: Final = 0
GOING: Final = 1
STORED: Final = 2
LEAVING: Final = 3
"""On its way, and no longer in memory."""


@final
class PageMarks(StoredMarks):
    """`n` pages from token position `start` on, or one unit (`at_node_end`) with `n` = 1, which only ever has the place 0."""

    __slots__ = ("_marks", "_page_size", "_start")

    def __init__(self, start: int, n: int, page_size: int) -> None:
        self._start = start
        self._page_size = page_size
        self._marks = bytearray(n)

    def place(self, position: int) -> int:
        """The place of the page that begins at token `position`."""
        return 0 if len(self._marks) == 1 else (position - self._start) // self._page_size

    def set(self, places: Iterable[int], mark: int) -> None:
        for place in places:
            self._marks[place] = mark

    def all_stored(self, first: int, n: int) -> bool:
        """Whether all of the `n` pages from the place `first` on are stored."""
        return self._marks.count(STORED, first, first + n) == n

    def going(self, first: int, n: int) -> bool:
        """Whether one of them is on its way to the storage."""
        marks = self._marks[first : first + n]
        return GOING in marks or LEAVING in marks

    def leave(self, first: int, n: int) -> None:
        """The `n` pages from the place `first` on leave memory: what is on its way has nobody who could send it again."""
        self._marks[first : first + n] = self._marks[first : first + n].replace(bytes([GOING]), bytes([LEAVING]))

    def leaving(self, place: int) -> bool:
        return self._marks[place] == LEAVING

    def absent(self, first: int, n: int) -> list[int]:
        """Places among them of which the storage has nothing and will get nothing."""
        if not self._marks.count(ABSENT, first, first + n):
            return []  # nearly always: every insert asks for its whole path
        return [place for place in range(first, first + n) if self._marks[place] == ABSENT]
