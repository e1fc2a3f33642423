"""The value of one stored page: a `.npy` file of its raw bytes, followed by a trailer that proves them.

`numpy.load` opens a page as a 1-D uint8 array and never looks at the trailer. The checksum covers the key as well: right bytes
under a wrong key are the same fault as wrong bytes. docs/page_format.md gives the offsets. An array is known here by its name,
dtype and shape, and by nothing else.

Layout: .npy header | payload | table of arrays (JSON) | footer (schema, lengths, magic, xxh3-128 over key and all before it).
"""

import json
import math
import re
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, cast, final

import xxhash

from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import Value
from kvcache_core.errors import KVCacheError

MAGIC: Final = b"KVCPAGE\n"
SCHEMA: Final = 1
CHECKSUM_BYTES: Final = 16
FOOTER: Final = Struct("<IIQ8s16s")
"""schema, bytes of the table, bytes of the payload, magic, checksum: the last 40 bytes of a page."""

HEADER_BYTES: Final = 128
_NPY_START: Final = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
_DTYPE = re.compile(r"(?:bool|b?float|u?int|complex)(\d*)(?:_\w+)?")


class BadPageError(KVCacheError):
    """Bytes that are not the page they were asked for. `reason`: short and stable, for counters; docs/page_format.md lists them.
    No host sees it: a page that does not verify is a miss, counted and deleted.

    What to do: nothing for one page; if it happens again, suspect the disk or the backend: `kvcache storage verify CONFIG`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"bad page: {reason}")
        self.reason = reason


class SealedPage(NamedTuple):
    """A page that was verified by its own trailer. `payload`: read-only raw bytes of `arrays`, one after another."""

    arrays: tuple[PageArray, ...]
    payload: memoryview


@final
class PageFrame:
    """The frame of pages that consist of `arrays`. All of its pages have the same size. Thread safe: it keeps no page."""

    def __init__(self, arrays: Sequence[PageArray]) -> None:
        """Raises ValueError for a dtype whose size is not a whole number of bytes."""
        self.arrays = tuple(PageArray(*array) for array in arrays)
        self.slices, self.payload_bytes = _places(self.arrays)
        self._header = _npy_header(self.payload_bytes)
        table = _table(self.arrays)
        unsigned = FOOTER.pack(SCHEMA, len(table), self.payload_bytes, MAGIC, bytes(CHECKSUM_BYTES))
        self._trailer = table + unsigned[:-CHECKSUM_BYTES]
        self._start = HEADER_BYTES
        self._end = self._start + self.payload_bytes
        self.file_bytes = self._end + len(self._trailer) + CHECKSUM_BYTES

    def new_value(self) -> bytearray:
        """A page without content, `file_bytes` long. The caller fills its payload and seals it."""
        value = bytearray(self.file_bytes)
        value[: self._start] = self._header
        value[self._end : -CHECKSUM_BYTES] = self._trailer
        return value

    def payload_of(self, value: bytearray) -> memoryview:
        """Where the raw bytes of the arrays go, writable; `slices` says which part is whose."""
        return memoryview(value)[self._start : self._end]

    def seal(self, key: str, value: bytearray) -> None:
        """Write the checksum, for storing `value` under `key`. To be done last: it covers everything else."""
        value[-CHECKSUM_BYTES:] = _checksum(key, memoryview(value)[:-CHECKSUM_BYTES])

    def open(self, key: str, value: Value) -> memoryview:
        """The payload of a page of this frame, read-only, not copied.

        Raises BadPageError: `value` is not whole, consists of other arrays, or was not sealed under `key`.
        """
        page = memoryview(value).toreadonly()
        if len(page) != self.file_bytes or not self._fits(page):
            raise BadPageError(_why(page, self))
        if bytes(page[-CHECKSUM_BYTES:]) != _checksum(key, page[:-CHECKSUM_BYTES]):
            raise BadPageError("checksum")
        return page[self._start : self._end]

    def around(self, payload: Sequence[memoryview]) -> list[memoryview]:
        """Buffers for one page, to be filled one after another, so that its payload comes to lie in the parts `payload`, which
        are `payload_bytes` together. `holds` says whether it does."""
        return [memoryview(bytearray(self._start)), *payload, memoryview(bytearray(self.file_bytes - self._end))]

    def holds(self, key: str, buffers: Sequence[memoryview], nbytes: int) -> bool:
        """Whether `buffers`, made by `around` and filled with `nbytes` bytes, hold a page that `open` would take for `key`."""
        first, *payload, last = buffers
        if nbytes != self.file_bytes or bytes(first) != self._header or bytes(last[:-CHECKSUM_BYTES]) != self._trailer:
            return False
        return bytes(last[-CHECKSUM_BYTES:]) == _checksum(key, first, *payload, last[:-CHECKSUM_BYTES])

    def _fits(self, page: memoryview) -> bool:
        return bytes(page[: self._start]) == self._header and bytes(page[self._end : -CHECKSUM_BYTES]) == self._trailer


def read_page(key: str, value: Value) -> SealedPage:
    """Verify a page of any frame by its own trailer, for those who do not know the model.

    Raises BadPageError: `value` is not a whole page, or was not sealed under `key`.
    """
    page = memoryview(value).toreadonly()
    arrays = _read_arrays(page)
    frame = PageFrame(arrays)
    return SealedPage(frame.arrays, frame.open(key, page))


def item_bytes(dtype: str) -> int:
    """Bytes of one number of the true dtype. Its name is enough, so neither jax nor ml_dtypes is needed.

    Raises ValueError for an unknown name, and for numbers smaller than a byte: their packing would be a layout of its own.
    """
    found = _DTYPE.fullmatch(dtype)
    bits = int(found[1] or (8 if dtype == "bool" else 0)) if found else 0
    if not bits or bits % 8:
        raise ValueError(f"a page cannot hold numbers of dtype {dtype!r}; it holds bool and numbers of whole bytes")
    return bits // 8


def _places(arrays: Sequence[PageArray]) -> tuple[tuple[slice, ...], int]:
    """The part of the payload of each array, and the bytes of all."""
    slices: list[slice] = []
    end = 0
    for array in arrays:
        start, end = end, end + math.prod(array.shape) * item_bytes(array.dtype)
        slices.append(slice(start, end))
    return tuple(slices), end


def _npy_header(payload_bytes: int) -> bytes:
    """Version 1.0 of the format. Not by numpy: a new version that pads otherwise would make every stored page a bad one."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({payload_bytes},), }}".encode("ascii")
    room = HEADER_BYTES - len(_NPY_START)
    return _NPY_START + text.ljust(room - 1) + b"\n"


def _table(arrays: Sequence[PageArray]) -> bytes:
    """Rows of name, true dtype, shape and offset in the payload. One text for the same arrays, so that it can be compared."""
    slices, _ = _places(arrays)
    rows = [[a.name, a.dtype, list(a.shape), place.start] for a, place in zip(arrays, slices, strict=True)]
    return json.dumps(rows, separators=(",", ":")).encode("ascii")


def _checksum(key: str, *parts: memoryview) -> bytes:
    """Of `key` and all of a page that stands before its checksum."""
    checksum = xxhash.xxh3_128(key.encode("ascii"))
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def _why(page: memoryview, frame: PageFrame) -> str:
    """Which reason describes a page best that does not fit into `frame`."""
    try:
        arrays = _read_arrays(page)
    except BadPageError as error:
        return error.reason
    return "other arrays" if arrays != frame.arrays else "header"


def _read_arrays(page: memoryview) -> tuple[PageArray, ...]:
    """The table of a page, without a proof that it is right. Raises BadPageError when there is none, or the lengths disagree."""
    if len(page) < FOOTER.size:
        raise BadPageError("length")
    schema, table_bytes, payload_bytes, magic, _ = cast("tuple[int, int, int, bytes, bytes]", FOOTER.unpack(page[-FOOTER.size :]))
    if magic != MAGIC:
        raise BadPageError("not a page")
    if schema != SCHEMA:
        raise BadPageError("schema")
    if len(page) != HEADER_BYTES + payload_bytes + table_bytes + FOOTER.size:
        raise BadPageError("length")
    try:
        rows = json.loads(bytes(page[len(page) - FOOTER.size - table_bytes : len(page) - FOOTER.size]))
        arrays = tuple(PageArray(str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape, _ in rows)
        fits = _places(arrays)[1] == payload_bytes
    except (ValueError, TypeError, OverflowError, RecursionError):  # whatever nonsense in a table can make of these lines
        raise BadPageError("table") from None
    if not fits:
        raise BadPageError("length")
    return arrays
