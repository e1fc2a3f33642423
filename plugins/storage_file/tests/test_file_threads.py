"""Helpers that share a batch, and the end of a store: every thread ends, and what hangs keeps nobody (FAULTS S9)."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_numbered import numbered_key, numbers_there, page_of, store_numbered
from kvcache_storage_file import workers
from kvcache_storage_file.workers import Workers

NBYTES = 1000


def batch(numbers) -> tuple[list[str], list[bytes]]:
    keys = [numbered_key(number) for number in numbers]
    return keys, [page_of(key, NBYTES) for key in keys]


def test_helpers_join_when_an_item_waits(monkeypatch):
    """All four wait for each other, so one thread alone would never come back."""
    monkeypatch.setattr(workers, "WAITED", -1.0)
    together = threading.Barrier(4)
    pool = Workers(3)

    def work(number: int) -> None:
        if number:
            together.wait(60)

    assert pool.each(5, work) == []
    pool.close(10)


def test_what_is_ready_at_once_starts_no_thread(monkeypatch):
    monkeypatch.setattr(workers, "WAITED", 60.0)
    before = threading.active_count()
    pool, seen = Workers(3), []
    assert pool.each(3, lambda number: seen.append((number, threading.current_thread()))) == []
    assert seen == [(number, threading.main_thread()) for number in range(3)]
    assert threading.active_count() == before
    assert pool.each(0, seen.append) == []


def test_a_helper_that_meets_an_exception_goes_on(monkeypatch):
    monkeypatch.setattr(workers, "WAITED", -1.0)
    pool = Workers(2)

    def work(number: int) -> None:
        if number % 2:
            raise OSError(f"number {number}")

    for _ in range(20):
        errors = pool.each(6, work)
        assert sorted(str(error) for error in errors) == ["number 1", "number 3", "number 5"]
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvcache-file")]
    assert len(names) == 2
    pool.close(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-file")]


def test_close_ends_every_thread_leaves_nothing_behind_and_may_be_repeated(root, monkeypatch):
    monkeypatch.setattr(workers, "WAITED", -1.0)
    storage = root.open(max_bytes=10**6)
    storage.set(*batch(range(20)))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    storage.close()
    storage.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvcache-file")]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors - 3
    assert sorted(path.name for path in (root.path / ".kvcache").iterdir()) == ["lock", "usage"]
    for call in (storage.exists, storage.get, storage.delete, lambda keys: storage.set(keys, [])):
        with pytest.raises(ValueError, match="closed"):
            call([])


def test_close_during_a_write_waits_for_it(root, monkeypatch):
    """Descriptors are closed by the last call that uses them: closed too early, they would soon be another file's."""
    storage = root.open(max_bytes=10**6)
    inside, go_on = threading.Event(), threading.Event()
    replace = os.replace

    def slow(source, target):
        inside.set()
        assert go_on.wait(60)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    writer = threading.Thread(target=store_numbered, args=(storage, [1], NBYTES))
    writer.start()
    assert inside.wait(60)
    closer = threading.Thread(target=storage.close)
    closer.start()
    go_on.set()
    writer.join(60)
    closer.join(60)
    monkeypatch.undo()
    reopened = root.open(max_bytes=10**6)
    assert numbers_there(reopened, [1], NBYTES) == [1]
    reopened.check_integrity()


def test_it_is_not_used_after_a_fork(root):
    storage = root.open()
    store_numbered(storage, [1], NBYTES)
    storage._process += 1  # as it looks to a child
    with pytest.raises(RuntimeError, match="open it again after a fork"):
        storage.get([numbered_key(1)])
    storage._process -= 1


HANGS = """
import os, sys, threading
from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file import workers
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import make

workers.WAITED = -1.0
store = make(FileOptions(path=sys.argv[1], min_free_bytes=0), StorageScope("model", 16))
main, hung, opened = threading.main_thread(), threading.Event(), os.open
def hang(*args, **kwargs):
    if threading.current_thread() is not main:
        hung.set()
        threading.Event().wait()
    hung.wait()
    return opened(*args, **kwargs)
os.open = hang
threading.Thread(target=store.get, args=([f"{n:064x}" for n in range(8)],), daemon=True).start()
hung.wait()
store.close()
print("closed", flush=True)
"""


def test_a_file_system_that_hangs_keeps_neither_close_nor_the_interpreter(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path / "root")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "closed\n"


class TestFaultsOfThreads(PlantedFaultTests):
    faults = (
        Fault(
            "what a helper met is lost",
            test_a_helper_that_meets_an_exception_goes_on,
            Replacement(workers._Job, "do_one", "self.errors.append(error)", "pass"),
        ),
    )
