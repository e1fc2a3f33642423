"""Batches that are filled page by page where they lie: their bytes, their memory, and who may still write to it."""

import gc
import threading

import jax
import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.host_pool import batch_room
from kvcache_unified_hicache.host_pool.batch_room import BatchRoom
from kvcache_unified_hicache.host_pool.page_layout import PageLayout
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool
from kvcache_unified_hicache.host_pool.spare_memory import SpareMemory


def payloads_of(bits, n):
    return [b"".join(array[row].tobytes() for array in jax.tree.leaves(bits)) for row in range(n)]


def fill(room, row, payload):
    at = 0
    for part in room.parts(row):
        part[:] = payload[at : at + len(part)]
        at += len(part)
    assert at == len(payload)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_pages_come_in_any_order_and_either_way(page_kind, same, rows_of, monkeypatch, devices, n):
    """Read to their places or placed as a whole, the batch has the same bits."""
    monkeypatch.setattr(batch_room, "PART_BYTES", 1)
    kind = page_kind("bfloat16", devices)
    layout = PageLayout(kind.struct)
    bits = kind.bits(n, 5)
    payloads = payloads_of(bits, n)
    room = BatchRoom(layout, n, SpareMemory())
    for row in reversed(range(n)):
        if row % 2:
            fill(room, row, payloads[row])
        else:
            room.place(row, memoryview(payloads[row]))
    batch = room.batch()
    assert layout.rows_of(batch) == 1 << (n - 1).bit_length()
    assert same(jax.tree.map(lambda array: np.asarray(array)[:n], batch), rows_of(bits, list(range(n))))


def test_small_arrays_are_placed(page_kind):
    """Telling a reader of a thousand small places costs more than a copy."""
    layout = PageLayout(page_kind().struct)
    assert BatchRoom(layout, 2, SpareMemory()).parts(0) is None


def test_threads_fill_one_batch(page_kind, same, rows_of):
    kind = page_kind()
    bits = kind.bits(64, 1)
    payloads = payloads_of(bits, 64)
    room = BatchRoom(PageLayout(kind.struct), 64, SpareMemory())

    def work(first):
        for row in range(first, 64, 4):
            room.place(row, memoryview(payloads[row]))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same(jax.tree.map(np.asarray, room.batch()), rows_of(bits, list(range(64))))


def test_memory_is_used_again_once_the_batch_is_gone(page_kind):
    kind = page_kind()
    memory = SpareMemory()
    layout = PageLayout(kind.struct)
    payloads = payloads_of(kind.bits(4, 0), 4)

    def batch():
        room = BatchRoom(layout, 4, memory)
        room.place(0, memoryview(payloads[0]))
        return room.batch()

    first = batch()
    place = np.asarray(layout.one_of(first)).ctypes.data
    assert memory.nbytes == 0
    second = batch()
    assert np.asarray(layout.one_of(second)).ctypes.data != place
    jax.block_until_ready(first)
    del first
    gc.collect()
    assert memory.nbytes > 0
    third = batch()
    assert np.asarray(layout.one_of(third)).ctypes.data == place, "the client takes the memory over, and lets go of it"
    assert memory.nbytes == 0


def test_a_late_writer_keeps_the_memory_from_others(page_kind, monkeypatch):
    """S1: a call that was given up may write for ever; its memory is nobody else's until it has let go."""
    monkeypatch.setattr(batch_room, "PART_BYTES", 1)
    kind = page_kind()
    memory = SpareMemory()
    layout = PageLayout(kind.struct)
    payload = payloads_of(kind.bits(1, 0), 1)[0]
    room = BatchRoom(layout, 2, memory)
    held = room.parts(1)
    fill(room, 0, payload)
    batch = room.batch()
    del room, batch
    gc.collect()
    assert memory.nbytes == 0
    held[0][:] = bytes(len(held[0]))
    held.clear()
    gc.collect()
    assert memory.nbytes > 0


@pytest.mark.parametrize("pool_type", [PerPagePool, PreallocatedPool])
def test_what_is_spare_stays_within_bounds(page_kind, pool_type):
    """Beside the pages of the slots a pool keeps no more than it said at the start."""
    kind = page_kind()
    pool = pool_type(kind.struct, 16)
    layout = PageLayout(kind.struct)
    payload = memoryview(payloads_of(kind.bits(1, 0), 1)[0])
    rooms = [BatchRoom(layout, 8, pool.spare) for _ in range(6)]
    for room in rooms:
        room.place(0, payload)
    rooms.clear()
    del room
    gc.collect()
    assert pool.spare.nbytes > 2 * pool.budget_bytes
    pool.pack_job()
    assert pool.spare.nbytes <= 1.1 * pool.budget_bytes
    slots = pool.alloc(16)
    pool.put(slots, kind.batch(kind.bits(16, 1)))
    pool.pack_job()
    limit = 0.1 if pool_type is PerPagePool else 0.5
    assert pool.spare.nbytes <= limit * pool.budget_bytes


def bounds_of_arrays(page_kind):
    test_what_is_spare_stays_within_bounds(page_kind, PerPagePool)


def bounds_of_buffers(page_kind):
    test_what_is_spare_stays_within_bounds(page_kind, PreallocatedPool)


class TestFaultsOfRooms(PlantedFaultTests):
    faults = (
        Fault(
            "spare memory is never given up",
            bounds_of_arrays,
            Replacement(PerPagePool, "pack_job", "self._trim_spare(", "max(0, "),
        ),
        Fault(
            "spare memory takes the place of arrays",
            bounds_of_arrays,
            Replacement(PerPagePool, "pack_job", "self._allowed - live", "self._allowed"),
        ),
        Fault(
            "beside buffers everything stays",
            bounds_of_buffers,
            Replacement(PreallocatedPool, "pack_job", "self._trim_spare(", "max(0, "),
        ),
        Fault(
            "a room keeps what it gave away",
            test_memory_is_used_again_once_the_batch_is_gone,
            Replacement(SpareMemory, "_settle", "self._spare.append(memory)", "pass"),
        ),
        Fault(
            "memory is given away while it is used",
            test_a_late_writer_keeps_the_memory_from_others,
            Replacement(
                SpareMemory,
                "take",
                "weakref.finalize(block, self._returned.append, memory).atexit = False",
                "self._returned.append(memory)",
            ),
        ),
    )
