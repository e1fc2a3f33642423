"""How many bytes of arrays are alive, counted by watching the arrays themselves.

A slot that was freed may still be read by a copy: its array then lives on, and so does its memory. It does not know slots.
"""

import weakref
from collections import deque
from typing import final

import jax


@final
class LiveBytes:
    """Arrays may die in any thread; all methods belong to the owner thread."""

    __slots__ = ("_dead", "_total", "_watched")

    def __init__(self) -> None:
        self._watched: dict[int, tuple[weakref.ref[jax.Array], int]] = {}  # by identity
        # Appending to a deque is atomic: a weak reference's callback runs wherever the last reference was dropped.
        self._dead: deque[int] = deque()
        self._total = 0

    def watch(self, array: jax.Array, nbytes: int) -> None:
        """Count `nbytes` until `array` is no longer referenced from Python. An array that is watched already counts once."""
        key, dead = id(array), self._dead
        watched = self._watched.get(key)
        if watched is not None and watched[0]() is array:
            return
        # Another array may have had this address: its end is in the deque, and must not be taken for this one's.
        self._settle()
        self._watched[key] = (weakref.ref(array, lambda _: dead.append(key)), nbytes)
        self._total += nbytes

    @property
    def total(self) -> int:
        self._settle()
        return self._total

    def _settle(self) -> None:
        while self._dead:
            self._total -= self._watched.pop(self._dead.popleft())[1]
