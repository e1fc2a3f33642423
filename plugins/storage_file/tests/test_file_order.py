"""Which page goes first: the one that was used least recently, by reading and writing alone (FAULTS P6, S5)."""

import time

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import largest_page, numbered_key, numbers_there, store_numbered
from kvcache_storage_file import ledger, page_file, victims
from kvcache_storage_file.ledger import Ledger
from kvcache_storage_file.victims import Victims

NBYTES = 1000
LIMIT = 10 * largest_page(NBYTES)


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
        root.age(number, 1000 - number)
    assert numbers_there(storage, [3], NBYTES) == [3]
    store_numbered(storage, range(100, 108), NBYTES)
    assert numbers_there(storage, range(10), NBYTES)[0] == 3


def test_asking_whether_a_page_exists_keeps_nothing(root):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    for number in range(10):
        root.age(number, 1000 - number)
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
        root.age(number, 1000 - number)
    store_numbered(storage, [100, 101], NBYTES)  # now there is a list, and page 2 or 3 is the next on it
    first = min(number for number in range(10) if root.file(number).exists())
    assert numbers_there(other, [first], NBYTES) == [first]
    store_numbered(storage, [102, 103], NBYTES)
    assert root.file(first).exists()
    assert not root.file(first + 1).exists()


def test_the_time_of_use_is_renewed_at_most_once_a_minute(root):
    storage = root.open()
    store_numbered(storage, [1, 2], NBYTES)
    root.age(1, 30)
    root.age(2, 90)
    young, old = (root.file(number).stat().st_mtime_ns for number in (1, 2))
    now = time.time_ns()
    assert numbers_there(storage, [1, 2], NBYTES) == [1, 2]
    assert root.file(1).stat().st_mtime_ns == young
    renewed = root.file(2).stat().st_mtime_ns
    assert renewed >= now > old
    assert numbers_there(storage, [2], NBYTES) == [2]
    assert root.file(2).stat().st_mtime_ns == renewed
    assert page_file.TOUCH_NS == 60 * 10**9


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


class TestFaultsOfTheOrder(PlantedFaultTests):
    faults = (
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
            Replacement(page_file, "_read", "renew and now - status.st_mtime_ns > TOUCH_NS", "False"),
        ),
        Fault(
            "every read writes",
            test_the_time_of_use_is_renewed_at_most_once_a_minute,
            Replacement(page_file, "_read", "renew and now - status.st_mtime_ns > TOUCH_NS", "True"),
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
            "the sample's youngest go as well",
            test_a_large_root_is_sampled,
            Replacement(Victims, "_refill", "candidates if looked == len(SHARDS) else", "candidates if True else"),
        ),
    )
