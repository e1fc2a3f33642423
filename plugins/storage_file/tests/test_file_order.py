"""Which page goes first: the one that was used least recently, by reading and writing alone (FAULTS P6, S5)."""

import time

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import largest_page, numbered_key, numbers_there, page_of, store_numbered
from kvcache_storage_file import ledger, page_file, victims
from kvcache_storage_file.ledger import Ledger
from kvcache_storage_file.reader import Reader
from kvcache_storage_file.room import Room
from kvcache_storage_file.victims import Victims
from kvcache_storage_file.writer import Writer

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


def set_together(storage, numbers):
    """In one call, as the pages of one prefix come."""
    keys = [numbered_key(number) for number in numbers]
    storage.set(keys, [page_of(key, NBYTES) for key in keys])


def test_of_a_prefix_the_beginning_stays(root):
    """A page is worth nothing without those before it: within one call the earlier keys count as used later."""
    storage = root.open(max_bytes=LIMIT)
    calls = [range(start, start + 5) for start in range(0, 30, 5)]
    for call in calls:
        set_together(storage, call)
    left = [numbers_there(storage, call, NBYTES) for call in calls]
    assert left == [list(call)[: len(rest)] for call, rest in zip(calls, left, strict=True)]
    assert [len(rest) for rest in left] == sorted(len(rest) for rest in left)
    assert any(0 < len(rest) < 5 for rest in left), "no call was cut: choose other sizes"
    assert max(page.used for page in storage.scan()) <= time.time()
    storage.check_integrity()


def test_of_a_call_larger_than_the_store_the_beginning_stays(root):
    """What was chosen before is older than what comes, except within a call."""
    storage = root.open(max_bytes=LIMIT, workers=1)
    set_together(storage, range(40))
    left = numbers_there(storage, range(40), NBYTES)
    assert left == [*range(len(left) - 1), 39]
    assert len(left) >= 9
    storage.check_integrity()


@pytest.mark.parametrize("into", [False, True], ids=["get", "get_into"])
def test_of_what_is_read_together_the_last_goes_first(root, into):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(10), NBYTES)
    for number in range(10):
        root.age(number, 1000)
    keys = [numbered_key(number) for number in range(10)]
    if into:
        assert None not in storage.get_into(keys, [[memoryview(bytearray(page_of(key, NBYTES)))] for key in keys])
    else:
        assert None not in storage.get(keys)
    store_numbered(storage, range(100, 104), NBYTES)
    left = [number for number in range(10) if root.file(number).exists()]
    assert 0 < len(left) < 10
    assert left == list(range(len(left)))


def warnings(caplog) -> list[str]:
    return [each.getMessage() for each in caplog.records if "smaller than what is being used" in each.getMessage()]


def test_a_store_that_is_too_small_says_so_once(root, caplog):
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(9), NBYTES)
    assert warnings(caplog) == []
    store_numbered(storage, range(9, 30), NBYTES)
    assert len(warnings(caplog)) == 1
    assert str(root.path) in warnings(caplog)[0]
    assert f"max_bytes={LIMIT}" in warnings(caplog)[0]


def test_a_disk_that_is_too_small_names_the_floor(small_disk, caplog):
    root = small_disk(2 * 2**20)
    store_numbered(root.open(min_free_bytes=2**20), range(30), 100_000)
    assert len(warnings(caplog)) == 1
    assert f"min_free_bytes={2**20}" in warnings(caplog)[0]


def test_pages_of_earlier_runs_go_silently(root, caplog):
    """Written before this opener came, and not used since: that is what a limit is for."""
    earlier = root.open()
    store_numbered(earlier, range(20), NBYTES)
    earlier.close()
    storage = root.open(max_bytes=LIMIT)
    store_numbered(storage, range(100, 108), NBYTES)
    assert not root.file(15).exists()
    assert warnings(caplog) == []
    assert numbers_there(storage, [100, 107], NBYTES) == [100, 107]


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
            "the beginning of a prefix goes first",
            test_of_a_prefix_the_beginning_stays,
            Replacement(Writer, "store", "now - number", "now + number"),
        ),
        Fault(
            "a call's own pages go in the order in which they were chosen",
            test_of_a_call_larger_than_the_store_the_beginning_stays,
            Replacement(Victims, "next", "used < self._queue[0].used <= time.time_ns()", "False"),
        ),
        Fault(
            "the first that is read goes first",
            lambda root: test_of_what_is_read_together_the_last_goes_first(root, into=False),
            Replacement(Reader, "_each", "now - number if", "now + number if"),
        ),
        Fault(
            "a store that is too small is silent",
            test_a_store_that_is_too_small_says_so_once,
            Replacement(Room, "remove", "gone and page.used > self._opened", "False"),
        ),
        Fault(
            "a store that is too small says so with every page",
            test_a_store_that_is_too_small_says_so_once,
            Replacement(Room, "_too_small", "self._warned_small = True", "pass"),
        ),
        Fault(
            "old pages are missed as well",
            test_pages_of_earlier_runs_go_silently,
            Replacement(Room, "remove", "gone and page.used > self._opened", "gone"),
        ),
        Fault(
            "a page that was used meanwhile goes all the same",
            test_a_page_that_was_used_since_it_was_chosen_is_passed_over,
            Replacement(ledger, "unlink", "used is not None and status.st_mtime_ns != used", "False"),
        ),
        Fault(
            "reading does not keep",
            test_a_page_that_is_read_stays,
            Replacement(page_file, "_read", "used - status.st_mtime_ns > TOUCH_NS", "False"),
        ),
        Fault(
            "every read writes",
            test_the_time_of_use_is_renewed_at_most_once_a_minute,
            Replacement(page_file, "_read", "used - status.st_mtime_ns > TOUCH_NS", "True"),
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
