"""Token ids and extra keys: what is close to right is refused, because its bytes would be another key."""

from array import array

import numpy as np
import pytest

from kvcache_core.contracts.tokens import as_token_ids, check_extra_key, floor_page


def test_int32_arrays_pass_without_a_copy():
    ids = np.array([5, 7, 0], np.int32)
    assert as_token_ids(ids) is ids
    view = as_token_ids(array("i", [5, 7]))
    assert view.dtype == np.int32
    assert view.tolist() == [5, 7]
    assert as_token_ids(np.empty(0, np.int32)).size == 0


def test_the_reason_for_refusing_int64_holds():
    assert np.array([5, 7], np.int64).tobytes() == np.array([5, 0, 7, 0], np.int32).tobytes()


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (np.array([5, 7], np.int64), TypeError),
        (np.array([5, 7], np.uint32), TypeError),
        (np.array([5, 7], ">i4"), TypeError),
        (array("q", [5, 7]), TypeError),
        ([5, 7], TypeError),
        ((5, 7), TypeError),
        (b"\x05\x00\x00\x00", TypeError),
        (np.array([5, -7], np.int32), ValueError),
        (np.zeros((1, 2), np.int32), ValueError),
        (np.arange(8, dtype=np.int32)[::2], ValueError),
    ],
)
def test_everything_else_is_refused(ids, error):
    with pytest.raises(error):
        as_token_ids(ids)


def test_a_negative_id_is_named():
    with pytest.raises(ValueError, match="position 2 holds -9"):
        as_token_ids(np.array([1, 2, -9], np.int32))


@pytest.mark.parametrize("key", [("a",), [b"a"], b"a", "a", (b"a", 1), None, (bytearray(b"a"),)])
def test_extra_key_is_a_tuple_of_bytes(key):
    with pytest.raises(TypeError):
        check_extra_key(key)


def test_extra_key_parts_are_framed():
    assert check_extra_key((b"a", b"bc")) != check_extra_key((b"ab", b"c"))
    assert check_extra_key(()) != check_extra_key((b"",))


@pytest.mark.parametrize(("length", "page", "floor"), [(0, 16, 0), (15, 16, 0), (16, 16, 16), (33, 16, 32), (7, 1, 7)])
def test_floor_page(length, page, floor):
    assert floor_page(length, page) == floor
