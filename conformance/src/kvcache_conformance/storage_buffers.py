"""Memory that pages are read into, and what a backend made of it. It knows the contract, and neither kit nor backend."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import final

from kvcache_core.contracts.storage import HiCacheStorage

_INVERSE = bytes(255 - byte for byte in range(256))
_AROUND = b"\xa5" * 16


@final
class PageBuffers:
    """The buffers of one page, with memory before, between and behind them that is not the backend's."""

    def __init__(self, sizes: Sequence[int], before: bytes) -> None:
        """`before`: what the buffers hold at first, `sum(sizes)` bytes."""
        ends = [*accumulate(sizes)]
        pieces = [before[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        self._memory = bytearray(_AROUND + b"".join(piece + _AROUND for piece in pieces))
        starts = [end - size + (number + 1) * len(_AROUND) for number, (size, end) in enumerate(zip(sizes, ends, strict=True))]
        self._gaps = [0, *(start + size for start, size in zip(starts, sizes, strict=True))]
        memory = memoryview(self._memory)
        self.views = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    @property
    def value(self) -> bytes:
        """What the buffers hold, one after another."""
        return b"".join(self.views)

    @property
    def spilled(self) -> bool:
        """Whether something was written beside them."""
        return any(not self._memory.startswith(_AROUND, gap) for gap in self._gaps)

    def fill(self, value: bytes) -> None:
        """`value` has as many bytes as the buffers."""
        at = 0
        for view in self.views:
            view[:] = value[at : at + len(view)]
            at += len(view)


def inverse(value: bytes) -> bytes:
    """What stands in buffers that `value` is to come to: a byte that is not written is a wrong one."""
    return value.translate(_INVERSE)


def in_parts(nbytes: int) -> list[int]:
    """The sizes of several buffers for one page, none of them empty."""
    cuts = (0, nbytes // 7, nbytes // 7 + nbytes // 3, nbytes)
    return [end - start for start, end in pairwise(cuts) if end > start]


def read_into(
    storage: HiCacheStorage, keys: Sequence[str], before: Sequence[bytes], sizes: Sequence[Sequence[int]] | None = None
) -> list[bytes | int | None] | None:
    """Ask `get_into` with buffers that hold `before`, of the given sizes or in a few parts. One answer per key, in order: the
    value where it is as long as its buffers, its length alone where it is not, None for a page that is not there. None for all
    where the backend does not offer it.

    Raises AssertionError: it did not answer with one length or None for each key, or wrote outside of the buffers.
    """
    sizes = [in_parts(len(value)) for value in before] if sizes is None else sizes
    places = [PageBuffers(some, value) for some, value in zip(sizes, before, strict=True)]
    answer = storage.get_into(keys, [place.views for place in places])
    if answer is None:
        return None
    assert type(answer) is list, f"get_into gave a {type(answer).__name__}, neither a list nor None"
    assert len(answer) == len(keys), f"get_into gave {len(answer)} answers for {len(keys)} keys"
    found: list[bytes | int | None] = []
    for number, (nbytes, place, value) in enumerate(zip(answer, places, before, strict=True)):
        assert type(nbytes) in (int, type(None)), f"get_into gave a {type(nbytes).__name__} for key {number} of {len(keys)}"
        assert not place.spilled, f"get_into wrote outside of the buffers of key {number} of {len(keys)}"
        found.append(place.value if nbytes == len(value) else nbytes)
    return found


def expect_into(
    storage: HiCacheStorage, keys: Sequence[str], wanted: Sequence[bytes | None], sizes: Sequence[Sequence[int]] | None = None
) -> bool:
    """Ask `get_into`, and compare the lengths and what is in the buffers afterwards. False: the backend does not offer it."""
    before = [bytes(100) if value is None else inverse(value) for value in wanted]
    found = read_into(storage, keys, before, sizes)
    if found is None:
        return False
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if got != want:
            raise AssertionError(f"get_into {_said(got, want)} for key {number} of {len(keys)}")
    return True


def _said(got: bytes | int | None, want: bytes | None) -> str:
    if want is None:
        return f"gave a page of {got if isinstance(got, int) else len(got or b'')} bytes, not None"
    if not isinstance(got, bytes):
        return f"gave {got}, not the length {len(want)}"
    if got == inverse(want):
        return f"gave the length {len(want)} and wrote nothing to the buffers"
    at = next(at for at, (one, other) in enumerate(zip(got, want, strict=True)) if one != other)
    why = "was left as it was" if got[at] == inverse(want)[at] else "is wrong"
    return f"did not fill the buffers one after another with the value: byte {at} of {len(want)} {why}"
