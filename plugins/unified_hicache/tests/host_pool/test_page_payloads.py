"""Pages as raw bytes and back: what storage gets from a host pool, and what it brings."""

import numpy as np
import pytest

from kvcache_unified_hicache.host_pool.batch_room import BatchRoom
from kvcache_unified_hicache.host_pool.page_layout import PageLayout


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "uint8"])
def test_every_bit_comes_back(page_kind, pool_kind, same, rows_of, dtype, devices):
    kind = page_kind(dtype, devices)
    layout = PageLayout(kind.struct)
    pool = pool_kind(kind.struct, 16)
    bits = kind.bits(8, 3)
    slots = pool.alloc(8)
    pool.put(slots, kind.batch(bits))
    pool.free(slots[2:7])  # what is left lies scattered
    wanted = slots[[7, 0, 1]]
    outputs = [bytearray(layout.payload_bytes) for _ in wanted]
    pool.get(wanted).write_into([memoryview(output) for output in outputs])

    arrays = [bits["k"][0], bits["k"][1], bits["state"], bits["v"][0], bits["v"][1]]
    for row, output in zip([7, 0, 1], outputs, strict=True):
        assert bytes(output) == b"".join(array[row].tobytes() for array in arrays)

    back, room = pool.alloc(3), BatchRoom(layout, 3, pool.spare)
    for row, output in enumerate(outputs):
        room.place(row, memoryview(output).toreadonly())
    pool.put(back, room.batch())
    assert same(pool.get(back).to_numpy(), rows_of(bits, [7, 0, 1]))


def test_packed_pages_give_the_same_bytes(page_kind, pool_kind):
    kind = page_kind()
    layout = PageLayout(kind.struct)
    pool = pool_kind(kind.struct, 4)
    kept, contents = [], []
    for seed in range(4):  # four batches of which one page each survives: more than the slots are worth
        bits = kind.bits(4, seed)
        slots = pool.alloc(1)
        pool.put(slots, kind.batch(bits), seed)
        kept.append(slots)
        contents.append([array[seed] for array in (*bits["k"], bits["state"], *bits["v"])])
    outputs = [bytearray(layout.payload_bytes) for _ in kept]
    pool.get(np.concatenate(kept)).write_into([memoryview(output) for output in outputs])
    assert [bytes(output) for output in outputs] == [b"".join(a.tobytes() for a in arrays) for arrays in contents]
