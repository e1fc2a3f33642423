"""Pages as values: what was put in comes out bit for bit, and everything else is refused."""

import io

import ml_dtypes
import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.pools import PageArray
from kvcache_unified_hicache.storage import page_frame
from kvcache_unified_hicache.storage.page_frame import BadPageError, PageFrame, read_page

KEY, OTHER_KEY = "a" * 64, "b" * 64
ARRAYS = (PageArray("k.0", "bfloat16", (2, 3)), PageArray("v.0", "uint8", (5,)), PageArray("scale", "float32", ()))


def sealed(key=KEY, arrays=ARRAYS, fill=b"\x5a"):
    frame = PageFrame(arrays)
    value = frame.new_value()
    frame.payload_of(value)[:] = fill * frame.payload_bytes
    frame.seal(key, value)
    return frame, bytes(value)


def reason(frame, value, key=KEY):
    with pytest.raises(BadPageError) as caught:
        frame.open(key, value)
    return caught.value.reason


def test_a_page_comes_back():
    frame, value = sealed()
    payload = frame.open(KEY, value)
    assert bytes(payload) == b"\x5a" * (12 + 5 + 4)
    assert payload.readonly
    assert len(value) == frame.file_bytes
    assert frame.slices == (slice(0, 12), slice(12, 17), slice(17, 21))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_page_of_any_bytes_type_is_opened(kind):
    frame, value = sealed()
    assert frame.open(KEY, kind(value)).readonly


def test_a_page_describes_itself():
    _, value = sealed()
    page = read_page(KEY, value)
    assert page.arrays == ARRAYS
    assert bytes(page.payload) == b"\x5a" * 21


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3", "float8_e3m4"]


@pytest.mark.parametrize("dtype", DTYPES + FLOAT8)
def test_every_dtype_comes_back_bit_for_bit(dtype):
    """B8: all bit patterns of two bytes, NaNs with payloads and signed zeros among them, as this dtype's numbers."""
    number = np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert page_frame.item_bytes(dtype) == number.itemsize
    patterns = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    arrays = (PageArray("a", dtype, (8, patterns.size // number.itemsize // 8)), PageArray("b", "uint8", (7,)))
    frame = PageFrame(arrays)
    value = frame.new_value()
    payload = frame.payload_of(value)
    payload[frame.slices[0]] = patterns.tobytes()
    payload[frame.slices[1]] = bytes(range(7))
    frame.seal(KEY, value)
    back = frame.open(KEY, bytes(value))
    numbers = np.frombuffer(back[frame.slices[0]], dtype=number).reshape(arrays[0].shape)
    assert numbers.tobytes() == patterns.tobytes()
    assert bytes(back[frame.slices[1]]) == bytes(range(7))


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float4_e2m1fn", "float", "object", "str", "bf16", "datetime64", ""])
def test_a_dtype_of_unknown_size_is_refused(dtype):
    with pytest.raises(ValueError, match="whole bytes"):
        PageFrame((PageArray("a", dtype, (4,)),))


def test_numpy_opens_a_page(tmp_path):
    """From a stream, a file and mapped memory; the trailer does not disturb."""
    frame, value = sealed()
    file = tmp_path / "page.npy"
    file.write_bytes(value)
    for array in (np.load(io.BytesIO(value)), np.load(file), np.load(file, mmap_mode="r")):
        assert array.dtype == np.uint8
        assert array.shape == (frame.payload_bytes,)
        assert array.tobytes() == b"\x5a" * 21


def test_one_flipped_bit_anywhere_is_found():
    """B1, for those who know the model and those who do not."""
    frame, value = sealed()
    for at in range(len(value)):
        bad = bytearray(value)
        bad[at] ^= 1 << at % 8
        reason(frame, bad)
        with pytest.raises(BadPageError):
            read_page(KEY, bad)


def test_a_truncated_page_is_found():
    frame, value = sealed()
    for length in range(len(value)):
        reason(frame, value[:length])
        with pytest.raises(BadPageError):
            read_page(KEY, value[:length])
    assert reason(frame, b"") == "length"


def test_trailing_junk_is_found():
    frame, value = sealed()
    for junk in (b"\0", b"junk", value):
        reason(frame, value + junk)
        with pytest.raises(BadPageError):
            read_page(KEY, value + junk)


def test_a_page_of_another_shape_and_the_same_size_is_found():
    """B1: the bytes are whole and sealed under the right key, and still mean something else."""
    frame, _ = sealed()
    for arrays in (
        (PageArray("k.0", "bfloat16", (3, 2)), *ARRAYS[1:]),
        (PageArray("k.0", "float16", (2, 3)), *ARRAYS[1:]),
        (PageArray("k.1", "bfloat16", (2, 3)), *ARRAYS[1:]),
        (*ARRAYS[:2], PageArray("scale", "float32", (1,))),
    ):
        other, value = sealed(arrays=arrays)
        assert other.payload_bytes == frame.payload_bytes
        assert reason(frame, value) == "other arrays"
        assert read_page(KEY, value).arrays == arrays


def test_a_page_under_another_key_is_found():
    """T19: right bytes, wrong page."""
    frame, value = sealed()
    assert reason(frame, value, OTHER_KEY) == "checksum"
    with pytest.raises(BadPageError):
        read_page(OTHER_KEY, value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda value: b"", "length"),
        (lambda value: value[:-1], "not a page"),
        (lambda value: value[:-24] + b"\0" * 24, "not a page"),
        (lambda value: b"\0" * len(value), "not a page"),
        (lambda value: value[:-40] + b"\2\0\0\0" + value[-36:], "schema"),
        (lambda value: value[:-1] + bytes([value[-1] ^ 1]), "checksum"),
        (lambda value: value[:130] + bytes([value[130] ^ 1]) + value[131:], "checksum"),
        (lambda value: value[:20] + bytes([value[20] ^ 1]) + value[21:], "header"),
        (lambda value: value[128:], "length"),
    ],
    ids=["empty", "cut", "no footer", "zeros", "schema", "checksum", "payload", "header", "no header"],
)
def test_the_reason_says_what_is_wrong(change, expected):
    frame, value = sealed()
    assert reason(frame, change(value)) == expected


def test_a_table_that_cannot_be_read_is_a_bad_page():
    """The lengths and the magic are right, and the rows are nonsense."""
    frame, value = sealed()
    table = slice(128 + frame.payload_bytes, len(value) - 40)
    for text in (
        b"[1]",
        b"{}",
        b"null",
        b'[["k","int4",[8],0]]',
        b'[["k","uint8",["x"],0]]',
        b"\xff\xfe",
        b'[["k","uint8",[1e999],0]]',
    ):
        bad = bytearray(value)
        bad[table] = text.ljust(table.stop - table.start)
        assert reason(frame, bad) in ("table", "length", "other arrays")


def test_pages_of_equal_arrays_have_equal_frames():
    """Nothing in a page depends on when or where it was made."""
    assert sealed()[1] == sealed()[1]


def test_the_layout_is_the_documented_one():
    """docs/page_format.md, byte by byte."""
    _, value = sealed()
    assert value[:10] == b"\x93NUMPY\x01\x00\x76\x00"
    table = b'[["k.0","bfloat16",[2,3],0],["v.0","uint8",[5],12],["scale","float32",[],17]]'
    assert value[128 + 21 : -40] == table
    assert (
        value[-40:-16] == (1).to_bytes(4, "little") + len(table).to_bytes(4, "little") + (21).to_bytes(8, "little") + b"KVCPAGE\n"
    )
    assert value[-16:].hex() == "d16ecc00af9e227c05f1b657ae684e4a"


class TestFaultsOfFrames(PlantedFaultTests):
    faults = (
        Fault(
            "key left out of the checksum",
            test_a_page_under_another_key_is_found,
            Replacement(page_frame, "_checksum", 'key.encode("ascii")', ""),
        ),
        Fault(
            "payload left out of the checksum",
            test_one_flipped_bit_anywhere_is_found,
            Replacement(page_frame, "_checksum", "checksum.update(part)", "checksum.update(part[:128])"),
        ),
        Fault(
            "checksum not compared",
            test_one_flipped_bit_anywhere_is_found,
            Replacement(
                PageFrame, "open", "if bytes(page[-CHECKSUM_BYTES:]) != _checksum(key, page[:-CHECKSUM_BYTES]):", "if not page:"
            ),
        ),
        Fault(
            "table not compared",
            test_a_page_of_another_shape_and_the_same_size_is_found,
            Replacement(PageFrame, "open", "or not self._fits(page)", ""),
        ),
        Fault(
            "length not compared",
            test_a_truncated_page_is_found,
            Replacement(PageFrame, "open", "if len(page) != self.file_bytes or", "if page and"),
        ),
        Fault(
            "header not compared",
            lambda: test_the_reason_says_what_is_wrong(lambda value: value[:20] + b"\1" + value[21:], "header"),
            Replacement(PageFrame, "_fits", "bytes(page[: self._start]) == self._header and ", ""),
        ),
        Fault(
            "sizes by a default dtype",
            lambda: test_every_dtype_comes_back_bit_for_bit("bfloat16"),
            Replacement(page_frame, "item_bytes", "return bits // 8", "return 4"),
        ),
    )
