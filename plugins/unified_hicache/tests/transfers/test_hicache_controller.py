"""HiCacheController with real arrays: what is copied, when it is captured, in which order it ends, and what a failure harms."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest

from kvcache_unified_hicache.host_pool.captured import CapturedPages


def test_pages_go_out_and_come_back_one_to_one(rig, page):
    rig.gate.write([3, 5, 7], page(3, 5, 7))
    slots = rig.slots(3)
    rig.settle(rig.write(slots, [5, 3, 7]))
    rig.gate.write([3, 5, 7], page(0, 0, 0))
    rig.settle(rig.load([9, 11, 10], [slots[2], slots[0], slots[1]]))
    assert np.array_equal(rig.gate.read([9, 11, 10]), page(7, 5, 3))
    assert rig.committed == [("w", True), ("l", True)]
    assert rig.counters.bytes_moved == {"d2h": 36, "h2d": 36}


def test_different_numbers_of_indices_are_an_error(rig):
    with pytest.raises(ValueError, match="one to one"):
        rig.write([1, 2], [1])
    with pytest.raises(ValueError, match="one to one"):
        rig.load([1, 2], [1])


def test_a_page_written_in_the_step_after_its_copy_was_asked_for(rig, page):
    """B3: the copy holds what the page held, although its buffer was donated."""
    rig.gate.write([3], page(3))
    slots = rig.slots(1)
    out = rig.write(slots, [3])
    rig.gate.write([3], page(9))
    rig.settle(out)
    rig.settle(rig.load([4], slots))
    assert np.array_equal(rig.gate.read([3, 4]), page(9, 3))


def test_a_slot_reused_while_it_is_copied_out(rig, page):
    """B4: a load takes its source in the call."""
    first, second = rig.stored(1, 2)
    load = rig.load([8, 9], [first, second])
    rig.hosts["full"].free(np.asarray([first, second], np.int32))
    again = rig.slots(2)
    assert sorted(again) == sorted([first, second])
    rig.gate.write([3, 4], page(5, 6))
    rig.settle(rig.write(again, [3, 4]), load)
    assert np.array_equal(rig.gate.read([8, 9]), page(1, 2))


def test_a_page_that_is_read_and_written_in_one_dispatch(rig, page):
    """Copies out are dispatched before copies in."""
    [slot] = rig.stored(1)
    rig.gate.write([3], page(3))
    load = rig.load([3], [slot])
    [other] = rig.slots(1)
    rig.settle(rig.write([other], [3]), load)
    rig.settle(rig.load([4], [other]))
    assert np.array_equal(rig.gate.read([3, 4]), page(1, 3))


def test_commits_come_in_the_order_of_submission(rig, page):
    rig.gate.write([1, 2, 3], page(1, 2, 3))
    slots = rig.slots(6)
    writes = [rig.write([slot], [i % 3 + 1], f"w{i}") for i, slot in enumerate(slots[:3])]
    rig.gate.idle()
    writes += [rig.write([slot], [i % 3 + 1], f"w{i}") for i, slot in enumerate(slots[3:], 3)]
    rig.settle(*writes)
    loads = [rig.load([10 + i], [slot], f"l{i}") for i, slot in enumerate(slots)]
    rig.settle(*loads)
    assert rig.committed == [(f"w{i}", True) for i in range(6)] + [(f"l{i}", True) for i in range(6)]


def test_nothing_is_committed_outside_of_poll(rig, page):
    rig.gate.write([1], page(1))
    out = rig.write(rig.slots(1), [1])
    for _ in range(3):
        rig.gate.idle()
    assert not out.done
    assert rig.committed == []


def test_a_copy_out_that_fails_harms_no_other(rig, page):
    rig.gate.write([1], page(1))
    rig.gate.write([1], page(2), "other")
    rig.pools["full"].broken = True
    bad, good = rig.write(rig.slots(1), [1], "bad"), rig.write(rig.slots(1, "other"), [1], "good", "other")
    rig.settle(bad, good)
    rig.pools["full"].broken = False
    slots = rig.slots(1)
    rig.settle(rig.write(slots, [1], "later"))
    assert rig.committed == [("bad", False), ("good", True), ("later", True)]
    assert rig.counters.bytes_moved == {"d2h": 24}


def test_a_copy_in_that_fails_harms_no_other(rig, page):
    slots = rig.stored(1, 2)
    rig.pools["full"].broken = True
    rig.settle(rig.load([5], slots[:1], "bad"))
    rig.pools["full"].broken = False
    rig.settle(rig.load([6], slots[1:], "good"))
    assert rig.committed == [("bad", False), ("good", True)]
    assert np.array_equal(rig.gate.read([5, 6]), page(0, 2))


def test_a_worker_that_meets_an_exception_goes_on(rig, page, monkeypatch):
    """S9: the assembly of pages from several batches fails once."""
    slots, batches, calls = rig.stored(1, 2, 3), CapturedPages.batches, []

    def fails_once(self):
        calls.append(threading.get_ident())
        if len(calls) == 1:
            raise MemoryError("planted")
        return batches(self)

    monkeypatch.setattr(CapturedPages, "batches", fails_once)
    monkeypatch.setattr(CapturedPages, "needs_assembly", True)
    rig.settle(rig.load([5, 6, 7], slots, "bad"))
    rig.settle(rig.load([8, 9, 10], slots, "good"))
    assert rig.committed == [("bad", False), ("good", True)]
    assert np.array_equal(rig.gate.read([5, 8, 9, 10]), page(0, 1, 2, 3))


def test_a_load_that_was_not_dispatched_can_be_dropped(rig, page):
    slots = rig.stored(1)
    load = rig.load([5], slots)
    assert load.cancel()
    assert load.done
    assert not load.cancel()
    rig.gate.idle()
    rig.controller.poll()
    assert rig.committed == [("l", False)]
    assert np.array_equal(rig.gate.read([5]), page(0))


def test_a_load_that_was_dispatched_cannot(rig, page):
    slots = rig.stored(1)
    load = rig.load([5], slots)
    while rig.queue.pending() == 0:
        rig.controller.poll()
    rig.gate.idle()
    assert not load.cancel()
    rig.settle(load)
    assert rig.committed == [("l", True)]
    assert np.array_equal(rig.gate.read([5]), page(1))


def test_bytes_in_flight_are_bounded(make_rig, page):
    """S10. One copy larger than the bound is made alone: otherwise never."""
    rig = make_rig(max_bytes=30)
    assert rig.controller.has_room("full", 2)
    assert rig.controller.has_room("full", 5)
    out = rig.write(rig.slots(2), [1, 2])
    assert not rig.controller.has_room("full", 1)
    rig.settle(out)
    assert rig.controller.has_room("full", 2)
    load = rig.load([3], rig.stored(1))
    assert rig.controller.has_room("full", 1)
    assert not rig.controller.has_room("full", 2)
    assert load.cancel()
    assert rig.controller.has_room("full", 5)


def test_reserve_evicts_and_says_so(make_rig, page):
    rig = make_rig(slots=3)
    slots = rig.stored(1, 2, 3)
    assert rig.controller.reserve("full", 2) is not None
    assert rig.evicted == [("full", slots[:2])]
    assert rig.controller.reserve("full", 4) is None


def test_batches_are_let_go_while_others_are_under_way(rig, page):
    """A stream of copies that never pauses must not keep what it brought."""
    seen = []
    rig.gate.write([1], page(1))
    slots = rig.slots(2)
    before = rig.write(slots[:1], [1])
    for step in range(20):
        rig.gate.idle()
        following = rig.write(slots[(step + 1) % 2 :][:1], [1])
        while not before.done:
            rig.controller.poll()
        seen.append(weakref.ref(before.pages))
        before = following
    gc.collect()
    until = time.monotonic() + 30
    # A worker lets go of them, when it comes to it.
    while sum(ref() is not None for ref in seen) > 3:
        assert time.monotonic() < until, "what was brought is kept"
        rig.controller.poll()
    rig.settle(before)


def test_close_ends_every_thread_and_nothing_lands_afterwards(rig, page):
    slots = rig.stored(1)
    rig.load([5], slots)
    rig.write(rig.slots(1), [1])
    rig.controller.close()
    rig.controller.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-hicache")]
    rig.gate.idle()
    assert np.array_equal(rig.gate.read([5]), page(0))
    assert rig.committed == []


def test_nothing_dispatches_from_another_thread(rig, page):
    slots = rig.stored(1, 2, 3)
    rig.settle(rig.load([5, 6, 7], slots))
    assert rig.pools["full"].threads == {threading.get_ident()}
    errors = []

    def elsewhere():
        for call in (rig.gate.take, lambda: rig.hosts["full"].get(np.asarray(slots, np.int32))):
            try:
                call()
            except RuntimeError as error:
                errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 2


def test_diagnosis_copies(rig, page):
    rig.gate.write([3, 4, 5], page(3, 4, 5))
    kept = rig.controller.get_cpu_copy(np.asarray([5, 3, 4], np.int32))
    assert np.array_equal(kept, page(5, 3, 4))
    rig.controller.load_cpu_copy(np.asarray([7, 8, 9], np.int32), kept)
    assert np.array_equal(rig.gate.read([7, 8, 9]), page(5, 3, 4))
