"""Pages that a backend says it has and did not deliver. It knows keys, and nothing of what was wrong with a page.

A page that the backend has is not written again. Where its word is not enough, because a look-up finds what reading does not, no
write would ever repair the page: such keys are written without asking.
"""

from collections.abc import Sequence
from typing import Final, final

MOST: Final = 65_536
"""Keys that are remembered; of more, the oldest are asked for again, and found out again when they are read."""


@final
class Doubts:
    """Only used on the owner thread."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}  # in the order in which they came

    def add(self, keys: Sequence[str]) -> None:
        """Pages that were asked for and did not come, or came spoilt."""
        self._keys.update(dict.fromkeys(keys))
        while len(self._keys) > MOST:
            del self._keys[next(iter(self._keys))]

    def settle(self, keys: Sequence[str]) -> None:
        """These were written anew."""
        for key in keys:
            self._keys.pop(key, None)

    def among(self, keys: Sequence[str]) -> frozenset[str]:
        """Those of `keys` that are to be written whatever the backend says."""
        return frozenset(key for key in keys if key in self._keys) if self._keys else frozenset()
