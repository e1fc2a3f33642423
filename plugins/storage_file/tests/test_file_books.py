"""How what is kept is counted: by all openers together, never too low, and trusted by nobody who comes later (FAULTS S5, S8)."""

import os
import threading

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import expect_stored, largest_page, numbered_key, numbers_there, store_numbered
from kvcache_core.errors import IntegrityError
from kvcache_storage_file import session, victims
from kvcache_storage_file.ledger import Ledger
from kvcache_storage_file.shared_lock import SharedLock

NBYTES = 1000
LIMIT = 10 * largest_page(NBYTES)


def test_pages_that_came_without_books_count(root):
    """Nothing that was remembered is trusted: files that were copied here are found at the next opening."""
    first = root.open(max_bytes=LIMIT)
    store_numbered(first, range(3), NBYTES)
    first.close()
    for number in range(100, 130):
        root.file(number).parent.mkdir(parents=True, exist_ok=True)
        root.file(number).write_bytes(b"x" * NBYTES)
        root.age(number, 1000)
    storage = root.open(max_bytes=LIMIT)
    assert root.bytes() <= LIMIT
    assert numbers_there(storage, range(3), NBYTES) == [0, 1, 2]
    storage.check_integrity()


def test_overwriting_and_deleting_give_room_back(root):
    storage = root.open(max_bytes=LIMIT)
    for _ in range(10):
        store_numbered(storage, range(9), NBYTES)
    assert numbers_there(storage, range(9), NBYTES) == list(range(9))
    storage.delete([numbered_key(number) for number in range(9)])
    store_numbered(storage, range(100, 109), NBYTES)
    assert numbers_there(storage, range(100, 109), NBYTES) == list(range(100, 109))
    storage.check_integrity()


class NoTime:
    """A clock on which every count takes too long."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 10.0
        return self.now


def test_until_all_is_counted_every_page_is_paid_for(root, monkeypatch):
    """Opening a huge root does not wait for its count; meanwhile the root cannot grow, and no page is lost for nothing."""
    full = root.open()
    store_numbered(full, range(30), NBYTES)
    full.close()
    before = root.bytes()
    monkeypatch.setattr(session, "time", NoTime())
    monkeypatch.setattr(victims, "SAMPLE", 1)
    monkeypatch.setattr(session.Session, "_count_on", session.Session.leave)
    storage = root.open(max_bytes=100 * NBYTES)
    assert root.bytes() == before
    store_numbered(storage, range(100, 105), NBYTES)
    assert root.bytes() <= before
    assert numbers_there(storage, range(100, 105), NBYTES) == list(range(100, 105))
    with storage._opened.use() as opened:
        assert opened.ledger.unknown()
        assert opened.room.count(lambda: True)
    store_numbered(storage, range(200, 210), NBYTES)
    assert root.bytes() > before
    storage.check_integrity()


def test_a_count_that_takes_long_goes_on_in_the_background(root, monkeypatch):
    full = root.open()
    store_numbered(full, range(40), NBYTES)
    full.close()
    monkeypatch.setattr(session, "time", NoTime())
    storage = root.open(max_bytes=LIMIT)
    storage.close()  # waits for the thread, or makes it stop
    monkeypatch.undo()
    storage = root.open(max_bytes=LIMIT)
    assert root.bytes() <= LIMIT
    storage.check_integrity()


def test_the_integrity_check_notices_a_count_that_is_too_low(root):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(5), NBYTES)
    root.file(3).write_bytes(b"x" * 5000)
    with pytest.raises(IntegrityError, match="counts"):
        storage.check_integrity()


def test_a_claim_is_given_back_when_the_write_fails(root, monkeypatch):
    storage = root.open(max_bytes=LIMIT)

    def refuse(source, target):
        raise OSError(5, "Input/output error", target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        for number in range(20):
            with pytest.raises(OSError, match="Input/output error"):
                store_numbered(storage, [number], NBYTES)
    storage.check_integrity()
    expect_stored(storage, range(100, 110), NBYTES)
    assert numbers_there(storage, range(100, 110), NBYTES) == list(range(100, 110))


def test_two_openers_never_keep_books_at_the_same_time(root, monkeypatch):
    """FAULTS S8 in one process: each opener has locks of its own, as processes have. While one reads the books to change them,
    the other has to wait.
    """
    storages = [root.open(max_bytes=LIMIT) for _ in range(2)]
    read = Ledger._read
    reading, most = 0, 0

    def slow(ledger):
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        meeting.wait(0.001)  # long enough for the other to come in, if it may
        reading -= 1
        return read(ledger)

    def run(at):
        both.wait(60)
        store_numbered(storages[at], range(at, 30, 2), NBYTES)

    meeting, both = threading.Event(), threading.Barrier(2)
    runs = [threading.Thread(target=run, args=(at,)) for at in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_read", slow)
        for thread in runs:
            thread.start()
        for thread in runs:
            thread.join()
    assert most == 1
    _, _, claimed, *counts = storages[0]._opened._session.ledger._read()
    assert claimed == 0
    assert sum(counts) == root.bytes() <= LIMIT


class TestFaultsOfBooks(PlantedFaultTests):
    faults = (
        Fault(
            "openers do not wait for each other",
            test_two_openers_never_keep_books_at_the_same_time,
            Replacement(SharedLock, "__enter__", "fcntl.flock(self._fd, fcntl.LOCK_EX)", "pass"),
        ),
        Fault(
            "a claim stays after a failure",
            test_a_claim_is_given_back_when_the_write_fails,
            Replacement(Ledger, "release", "if claim.epoch:", "if False:"),
        ),
        Fault(
            "what is overwritten still counts",
            test_overwriting_and_deleting_give_room_back,
            Replacement(Ledger, "commit", "self._add(shard, -older)", "pass"),
        ),
        Fault(
            "what is deleted still counts",
            test_overwriting_and_deleting_give_room_back,
            Replacement(Ledger, "remove", "self._add(shard, -freed)", "pass"),
        ),
        Fault(
            "what was counted in another run is trusted",
            test_pages_that_came_without_books_count,
            Replacement(Ledger, "_join", "if alone:", "if alone and not os.fstat(self._fd).st_size:"),
        ),
        Fault(
            "what nobody has counted is nothing",
            test_until_all_is_counted_every_page_is_paid_for,
            Replacement(Ledger, "claim", "nbytes - paid if _UNKNOWN in counts else", ""),
        ),
    )
