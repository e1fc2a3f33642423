"""What a backend answered, checked before anyone believes it. Which page a value is, only its frame can tell."""

from collections.abc import Sequence
from typing import cast

from kvcache_core.contracts.storage import Value
from kvcache_core.errors import KVCacheError


class BadAnswerError(KVCacheError):
    """A backend answered something other than one item of the right type for each key. At run time its pages are misses, counted
    as `storage answer`; at start it fails the self-test.

    What to do: this is a bug in the storage plugin; `kvcache conformance storage NAME` shows what else it gets wrong.
    """


def checked_flags(answer: object, n: int) -> list[bool]:
    """`answer` if it is `n` bools. Raises BadAnswerError: a count or a numpy array could be mistaken for another answer."""
    flags = _one_each(answer, n)
    if any(type(flag) is not bool for flag in flags):
        raise BadAnswerError("exists() must give bools")
    return cast("list[bool]", list(flags))


def checked_values(answer: object, n: int) -> list[bytes | None]:
    """`answer` if it is `n` values or Nones, and copies of what its maker could still change: a page is verified now and used
    later. Raises BadAnswerError."""
    values = _one_each(answer, n)
    if not all(value is None or _is_bytes(value) for value in values):
        raise BadAnswerError("get() must give bytes or None for each key")
    return [bytes(cast(Value, value)) if value is not None and type(value) is not bytes else value for value in values]


def checked_lengths(answer: object, n: int) -> list[int | None]:
    """`answer` if it is `n` whole numbers or Nones. Raises BadAnswerError."""
    lengths = _one_each(answer, n)
    if any(length is not None and type(length) is not int for length in lengths):
        raise BadAnswerError("get_into() must give a number of bytes or None for each key")
    return cast("list[int | None]", list(lengths))


def _is_bytes(value: object) -> bool:
    if type(value) is memoryview:
        return value.format == "B" and value.ndim == 1 and value.c_contiguous
    return type(value) in (bytes, bytearray)


def _one_each(answer: object, n: int) -> Sequence[object]:
    if type(answer) not in (list, tuple):
        raise BadAnswerError(f"it must answer with a list, not {type(answer).__name__}")
    items = cast("Sequence[object]", answer)
    if len(items) != n:
        raise BadAnswerError(f"it gave {len(items)} answers for {n} keys")
    return items
