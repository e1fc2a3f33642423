"""Openers with and without a limit that come while pages are being written, and drafts that fail twice (FAULTS S5, S8)."""

import os
import stat
import threading

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import largest_page, numbered_key, numbers_there, store_numbered
from kvcache_storage_file.draft import Draft
from kvcache_storage_file.ledger import Ledger

NBYTES = 1000
LIMIT = 4 * largest_page(NBYTES)


def held_up(storage, numbers, at) -> tuple[threading.Thread, threading.Event]:
    """A thread that stores pages and has come to `at`, a method of Draft, with the first of them; it goes on with the event."""
    arrived, go_on = threading.Event(), threading.Event()
    method = getattr(Draft, at)

    def wait(draft, *args):
        arrived.set()
        go_on.wait()
        return method(draft, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draft, at, wait)
        thread = threading.Thread(target=store_numbered, args=(storage, numbers, NBYTES))
        thread.start()
        arrived.wait()
    return thread, go_on


def test_a_page_claimed_before_anyone_had_a_limit_counts_when_it_comes(root):
    free = root.open()
    store_numbered(free, [0, 1, 2], NBYTES)
    writers = [held_up(free, [number], "commit") for number in range(1, 9)]
    limited = root.open(max_bytes=LIMIT)
    for thread, go_on in writers:
        go_on.set()
        thread.join()
    limited.check_integrity()
    _, _, claimed, *counts = limited._opened._session.ledger._read()
    assert (claimed, sum(counts)) == (0, root.bytes())
    store_numbered(limited, [100], NBYTES)
    assert root.bytes() <= LIMIT
    assert numbers_there(limited, [100], NBYTES) == [100]
    limited.check_integrity()


def test_a_limit_that_comes_while_a_page_gets_its_name_counts_the_page(root, monkeypatch):
    """Between the look at the books and the rename: the new opener has counted the shard, and the page was not there."""
    free = root.open()
    replace, limited = os.replace, []

    def late(source, target):
        limited.append(root.open(max_bytes=LIMIT))
        monkeypatch.setattr(os, "replace", replace)
        replace(source, target)

    store_numbered(free, [0], NBYTES)
    monkeypatch.setattr(os, "replace", late)
    store_numbered(free, [1], NBYTES)
    limited[0].check_integrity()
    store_numbered(limited[0], range(100, 104), NBYTES)
    assert root.bytes() <= LIMIT


def test_a_page_whose_sync_and_close_fail_gives_back_what_it_claimed(root, monkeypatch):
    """A network file system that is full says so more than once."""
    storage = root.open(max_bytes=LIMIT, durability="page")
    sync, close, failed = os.fsync, os.close, set()

    def no_sync(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return sync(fd)
        failed.add(fd)
        raise OSError(28, "No space left on device (sync)")

    def no_close(fd):
        close(fd)
        if fd in failed:
            failed.remove(fd)
            raise OSError(5, "Input/output error (close)")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_sync)
        patch.setattr(os, "close", no_close)
        for number in range(10):
            with pytest.raises(OSError, match="sync"):
                store_numbered(storage, [number], NBYTES)
    assert root.temporaries() == []
    storage.check_integrity()
    store_numbered(storage, range(20, 24), NBYTES)
    assert storage.exists([numbered_key(23)]) == [True]


class TestPlantedFaults(PlantedFaultTests):
    faults = (
        Fault(
            "what was claimed without books is never counted",
            test_a_page_claimed_before_anyone_had_a_limit_counts_when_it_comes,
            Replacement(Ledger, "commit", "not claim.epoch and not self.active", "not claim.epoch"),
        ),
        Fault(
            "the books are looked at once",
            test_a_limit_that_comes_while_a_page_gets_its_name_counts_the_page,
            Replacement(Ledger, "commit", "if self.active:", "if False:"),
        ),
        Fault(
            "a file that does not close keeps its claim",
            test_a_page_whose_sync_and_close_fail_gives_back_what_it_claimed,
            Replacement(Draft, "attempt", "with suppress(OSError):", "with suppress():"),
        ),
    )
