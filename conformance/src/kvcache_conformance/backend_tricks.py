"""Tricks for a storage backend that can be told to misbehave, call by call. They know nothing of who calls it, nor of pages'
format but that a byte matters.
"""

from collections.abc import Callable, Sequence
from typing import Any

Trick = Callable[[Callable[[], Any], Sequence[str]], Any]
"""What a call does instead: it is given the honest call, bound to its arguments, and the keys."""


def raises(error: BaseException) -> Trick:
    """Every call raises `error`, and does nothing."""

    def trick(honest: Callable[[], Any], keys: Sequence[str]) -> Any:
        raise error

    return trick


def gives(change: Callable[[Any], Any]) -> Trick:
    """The honest answer, changed."""
    return lambda honest, keys: change(honest())


def once(trick: Trick) -> Trick:
    """Misbehave in the first call, and never again."""
    left = [trick]
    return lambda honest, keys: left.pop()(honest, keys) if left else honest()


def flipped(value: bytes, at: int = 150) -> bytes:
    """A copy with one bit changed; the default lies behind the 128 bytes that a page's `.npy` header takes."""
    return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
