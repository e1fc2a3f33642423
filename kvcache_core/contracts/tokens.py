"""Token ids, extra keys and the checks that keep foreign bytes out of cache keys.

Keys are compared by the bytes of int32 tokens. An int64 array [5, 7] holds the same bytes as the int32 array [5, 0, 7, 0],
so a type that is merely "close" would find a wrong page. It is refused here, once, for every cache.
"""

from array import array
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

INT32 = np.dtype(np.int32)

TokenIds: TypeAlias = "npt.NDArray[np.int32] | array[int]"
"""A prompt or a prefix: contiguous 1-D int32, as a numpy array or an `array.array('i')`."""

ExtraKey = tuple[bytes, ...]
"""What separates requests with equal tokens (LoRA, salt, tenant). Parts are framed, never joined: (b"a", b"bc") differs from
(b"ab", b"c"), and a missing part differs from an empty one. A part's place in the tuple is its meaning."""


def as_token_ids(ids: TokenIds) -> npt.NDArray[np.int32]:
    """Return `ids` as a 1-D int32 view without copying, or say why it cannot be a key.

    Raises:
        TypeError: not a numpy array or `array.array('i')`, or another dtype. Lists and int64 are refused on purpose.
        ValueError: not 1-D, not contiguous, or a negative id.
    """
    view = token_view(ids)
    check_not_negative(view)
    return view


def token_view(ids: TokenIds) -> npt.NDArray[np.int32]:
    """The part of `as_token_ids` that does not look at the values, and therefore does not cost more for longer prompts.

    A cache that finds a prefix equal to tokens it has checked before needs `check_not_negative` only for the rest.
    """
    if type(ids) is array:
        if ids.typecode != "i":
            raise TypeError(f"token ids must be int32; this array.array has typecode {ids.typecode!r}, use array('i', ...)")
        return np.frombuffer(ids, dtype=np.int32)
    if not isinstance(ids, np.ndarray):
        raise TypeError(f"token ids must be a numpy int32 array or array('i', ...), not {type(ids).__name__}")
    if ids.dtype is not INT32 and ids.dtype != INT32:
        raise TypeError(f"token ids must be int32, not {ids.dtype}; convert with .astype(np.int32)")
    if ids.ndim != 1:
        raise ValueError(f"token ids must be one-dimensional, not of shape {ids.shape}")
    if not ids.flags.c_contiguous:
        raise ValueError("token ids must be contiguous; use np.ascontiguousarray(ids)")
    return ids


def check_not_negative(view: npt.NDArray[np.int32], start: int = 0) -> None:
    """Raise ValueError if a token from position `start` on is negative."""
    rest = view[start:] if start else view
    # argmin finds the minimum as fast as min and skips the ufunc machinery, which costs more than the scan of a short prompt
    if rest.size and rest.item(rest.argmin()) < 0:
        raise ValueError(f"token ids must not be negative; position {start + int(rest.argmin())} holds {int(rest.min())}")


def check_extra_key(extra_key: ExtraKey) -> ExtraKey:
    """Return `extra_key` if it is a tuple of bytes. Raises TypeError otherwise: str would make the key depend on an encoding."""
    if type(extra_key) is not tuple or any(type(part) is not bytes for part in extra_key):
        raise TypeError(f"extra_key must be a tuple of bytes such as (b'lora-a', b'tenant-7'), not {extra_key!r}")
    return extra_key


def floor_page(length: int, page_size: int) -> int:
    """The largest multiple of `page_size` that is at most `length`, both in tokens."""
    return length - length % page_size
