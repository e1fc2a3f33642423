"""What is kept and what goes: the limit, the order, and how it is counted (FAULTS S5, S6)."""

import os
import threading
import time

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import expect_stored, largest_page, numbered_key, numbers_there, store_numbered
from kvcache_core.contracts.storage import StorageScope
from kvcache_core.errors import IntegrityError
from kvcache_storage_file import ledger, page_file, session, victims
from kvcache_storage_file.ledger import Ledger
from kvcache_storage_file.room import Room
from kvcache_storage_file.root import Root
from kvcache_storage_file.shared_lock import SharedLock
from kvcache_storage_file.victims import Victims

NBYTES = 1000
LIMIT = 10 * largest_page(NBYTES)


def age(root, number: int, seconds: float) -> None:
    """Make a page look as if it was used that long ago."""
    used = time.time() - seconds
    os.utime(root.file(number), (used, used))


def test_the_least_recently_written_goes_first(root):
    storage = root.open(max_bytes=LIMIT)
    for number in range(30):
        store_numbered(storage, [number], NBYTES)
        assert root.bytes() <= LIMIT
    left = numbers_there(storage, range(30), NBYTES)
    assert left == list(range(30 - len(left), 30))
    assert len(left) >= 10
    storage.check_integrity()


def test_a_page_that_is_read_stays(root):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    for number in range(10):
        age(root, number, 1000 - number)
    assert numbers_there(storage, [3], NBYTES) == [3]
    store_numbered(storage, range(100, 108), NBYTES)
    assert numbers_there(storage, range(10), NBYTES)[0] == 3


def test_asking_whether_a_page_exists_keeps_nothing(root):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    for number in range(10):
        age(root, number, 1000 - number)
    before = root.file(0).stat().st_mtime_ns
    assert storage.exists([numbered_key(0)]) == [True]
    assert root.file(0).stat().st_mtime_ns == before
    store_numbered(storage, range(100, 104), NBYTES)
    left = numbers_there(storage, range(10), NBYTES)
    assert 0 < len(left) < 10
    assert left == list(range(10 - len(left), 10))


def test_a_page_that_was_used_since_it_was_chosen_is_passed_over(root):
    """Candidates are chosen by the thousand, and another process may read one of them a moment later."""
    storage, other = root.open(max_bytes=LIMIT), root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    for number in range(10):
        age(root, number, 1000 - number)
    store_numbered(storage, [100, 101], NBYTES)  # now there is a list, and page 2 or 3 is the next on it
    first = min(number for number in range(10) if root.file(number).exists())
    assert numbers_there(other, [first], NBYTES) == [first]
    store_numbered(storage, [102, 103], NBYTES)
    assert root.file(first).exists()
    assert not root.file(first + 1).exists()


def test_the_time_of_use_is_renewed_at_most_once_a_minute(root):
    storage = root.open()
    store_numbered(storage, [1, 2], NBYTES)
    age(root, 1, 30)
    age(root, 2, 90)
    young, old = (root.file(number).stat().st_mtime_ns for number in (1, 2))
    now = time.time_ns()
    assert numbers_there(storage, [1, 2], NBYTES) == [1, 2]
    assert root.file(1).stat().st_mtime_ns == young
    renewed = root.file(2).stat().st_mtime_ns
    assert renewed >= now > old
    assert numbers_there(storage, [2], NBYTES) == [2]
    assert root.file(2).stat().st_mtime_ns == renewed
    assert page_file.TOUCH_NS == 60 * 10**9


def test_pages_of_all_models_and_page_sizes_share_the_limit(root):
    scopes = [StorageScope("one", 16), StorageScope("two", 16), StorageScope("one", 64)]
    storages = [root.open(scope, max_bytes=LIMIT) for scope in scopes]
    for number in range(30):
        store_numbered(storages[number % 3], [number], NBYTES)
        assert root.bytes() <= LIMIT
    assert [numbers_there(storage, range(at, 30, 3), NBYTES)[-1] for at, storage in enumerate(storages)] == [27, 28, 29]
    for storage in storages:
        storage.check_integrity()


def test_a_lower_limit_holds_when_the_root_is_open(root):
    storage = root.open()
    store_numbered(storage, range(40), NBYTES)
    storage.close()
    storage = root.open(max_bytes=LIMIT)
    assert LIMIT - 2 * NBYTES < root.bytes() <= LIMIT
    left = numbers_there(storage, range(40), NBYTES)
    assert left == list(range(40 - len(left), 40))
    storage.check_integrity()


def test_pages_that_came_without_books_count(root):
    """Nothing that was remembered is trusted: files that were copied here are found at the next opening."""
    first = root.open(max_bytes=LIMIT)
    store_numbered(first, range(3), NBYTES)
    first.close()
    for number in range(100, 130):
        root.file(number).parent.mkdir(parents=True, exist_ok=True)
        root.file(number).write_bytes(b"x" * NBYTES)
        age(root, number, 1000)
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


def test_a_page_above_the_limit_is_refused_and_removes_nothing(root):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(5), NBYTES)
    with pytest.raises(OSError, match="larger than max_bytes"):
        storage.set([numbered_key(99)], [b"x" * (LIMIT + 1)])
    assert numbers_there(storage, range(5), NBYTES) == list(range(5))
    storage.check_integrity()


def test_a_victim_that_cannot_be_removed_stops_neither_others_nor_writes(root, monkeypatch):
    """FAULTS S6. The oldest page stays, whatever is tried."""
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    stuck = str(root.file(0))
    unlink = os.unlink

    def refuse(path, *args, **kwargs):
        if os.fspath(path) == stuck:
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", refuse)
    expect_stored(storage, range(100, 120), NBYTES)
    left = numbers_there(storage, [*range(10), *range(100, 120)], NBYTES)
    assert left[0] == 0
    assert left[1:] == list(range(121 - len(left), 120))
    assert root.bytes() <= LIMIT
    with pytest.raises(PermissionError):
        storage.delete([numbered_key(0), numbered_key(119)])
    assert storage.exists([numbered_key(119)]) == [False]
    storage.check_integrity()


def test_nothing_but_pages_that_stay_is_an_error_and_not_an_endless_search(root, monkeypatch):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    before = root.bytes()

    def refuse(path, *_args, **_kwargs):
        raise PermissionError(1, "Operation not permitted", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(OSError, match="no page can be removed"):
            store_numbered(storage, [100], 2 * NBYTES)
    assert root.bytes() == before
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


def test_a_large_root_is_sampled(root, monkeypatch):
    """With more pages than a sample: the oldest of some shards, which are about the oldest of all."""
    monkeypatch.setattr(victims, "SAMPLE", 64)
    storage = root.open(max_bytes=400 * largest_page(100))
    for start in range(0, 1200, 100):
        store_numbered(storage, range(start, start + 100), 100)
    left = numbers_there(storage, range(1200), 100)
    assert root.bytes() <= 400 * largest_page(100)
    # An exact order would leave the newest, a random choice pages of all ages.
    newest = range(1200 - len(left), 1200)
    assert sum(left) / len(left) > sum(newest) / len(newest) - 20
    assert set(left) != set(newest)
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

    meeting = threading.Event()
    runs = [threading.Thread(target=store_numbered, args=(storages[at], range(at, 30, 2), NBYTES)) for at in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_read", slow)
        for run in runs:
            run.start()
        for run in runs:
            run.join()
    assert most == 1
    _, _, claimed, *counts = storages[0]._opened._session.ledger._read()
    assert claimed == 0
    assert sum(counts) == root.bytes() <= LIMIT


class TestPlantedFaults(PlantedFaultTests):
    faults = (
        Fault(
            "openers do not wait for each other",
            test_two_openers_never_keep_books_at_the_same_time,
            Replacement(SharedLock, "__enter__", "fcntl.flock(self._fd, fcntl.LOCK_EX)", "pass"),
        ),
        Fault(
            "the newest goes first",
            test_the_least_recently_written_goes_first,
            Replacement(
                Victims,
                "_refill",
                "sorted(page for page in seen if page.path not in self._set_aside)",
                "sorted((page for page in seen if page.path not in self._set_aside), reverse=True)",
            ),
        ),
        Fault(
            "a page that was used meanwhile goes all the same",
            test_a_page_that_was_used_since_it_was_chosen_is_passed_over,
            Replacement(ledger, "_unlink", "used is not None and status.st_mtime_ns != used", "False"),
        ),
        Fault(
            "reading does not keep",
            test_a_page_that_is_read_stays,
            Replacement(page_file, "read", "renew and now - status.st_mtime_ns > TOUCH_NS", "False"),
        ),
        Fault(
            "every read writes",
            test_the_time_of_use_is_renewed_at_most_once_a_minute,
            Replacement(page_file, "read", "renew and now - status.st_mtime_ns > TOUCH_NS", "True"),
        ),
        Fault(
            "asking keeps",
            test_asking_whether_a_page_exists_keeps_nothing,
            Replacement(page_file, "is_file", "return stat.S_ISREG(os.stat(path).st_mode)", "os.utime(path); return True"),
        ),
        Fault(
            "the page to be written is not counted",
            test_the_least_recently_written_goes_first,
            Replacement(Ledger, "claim", "sum(counts) + claimed + nbytes - self._limit", "sum(counts) + claimed - self._limit"),
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
        Fault(
            "a lower limit waits for a write",
            test_a_lower_limit_holds_when_the_root_is_open,
            Replacement(Room, "count", "excess := self._ledger.excess()", "excess := 0"),
        ),
        Fault(
            "the search ends at a page that stays",
            test_a_victim_that_cannot_be_removed_stops_neither_others_nor_writes,
            Replacement(Room, "remove", "self._victims.set_aside(page)", "return freed"),
        ),
        Fault(
            "a page that is too large empties the root",
            test_a_page_above_the_limit_is_refused_and_removes_nothing,
            Replacement(Root, "mend", "isinstance(error, NoRoomError)", "False"),
        ),
        Fault(
            "the sample's youngest go as well",
            test_a_large_root_is_sampled,
            Replacement(Victims, "_refill", "candidates if looked == len(SHARDS) else", "candidates if True else"),
        ),
    )
