"""Closing the guard: threads end, what is under way is dropped, and a backend that hangs keeps no program."""

import subprocess
import sys

from kvcache_conformance.backend_tricks import raises


def test_everything_ends_with_close(guarded, threads):
    world = guarded()
    world.store([1])
    assert len(threads()) == 4
    world.guard.close(60)
    assert threads() == []
    assert world.backend.closed == 1
    world.guard.close(60)
    assert world.backend.closed == 1
    assert not world.start_exists([1])
    assert not world.start_store([1])
    assert not world.start_fetch([1])
    assert world.guard.poll() == 0
    world.guard.wait(float("inf"))


def test_close_drops_what_is_under_way(guarded, threads):
    """S9: nobody is called any more, and what was not begun never begins."""
    world = guarded(workers=1)
    world.backend.tricks["set"] = world.backend.hang
    world.start_store([1])
    world.backend.wait_until_hanging()
    world.start_store([2])
    world.guard.close(0)
    assert world.guard.idle
    assert world.guard.in_flight == 0
    world.backend.released.set()
    for thread in threads():
        thread.join(60)
    assert threads() == []
    assert world.guard.poll() == 0
    assert world.answers == []
    assert world.backend.called("set") == [[world.key(1)]]


def test_close_ends_while_the_backend_hangs(guarded, threads):
    """S9: in its calls and in its own close."""
    world = guarded()
    world.backend.tricks |= {"set": world.backend.hang, "close": world.backend.hang}
    world.start_store([1])
    world.backend.wait_until_hanging()
    world.guard.close(0.05)
    assert world.backend.closed == 1
    assert len(threads()) == 2
    world.backend.released.set()


def test_a_backend_that_fails_to_close_is_only_logged(guarded, caplog):
    world = guarded()
    world.backend.tricks["close"] = raises(OSError("still busy"))
    world.guard.close(60)
    assert "still busy" in caplog.text


HANGING_PROGRAM = """
import threading
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard

begun = threading.Event()

class Hangs(HiCacheStorage):
    def exists(self, keys):
        begun.set()
        threading.Event().wait()
    get = set = delete = exists
    def close(self):
        threading.Event().wait()

guard = StorageGuard(Hangs(), GuardSettings(timeout=0.01), CacheCounters(), ())
guard.exists(["0" * 64], print)
assert begun.wait(60)
while not guard.idle:
    guard.wait(60)
    guard.poll()
guard.close(0.01)
"""


def test_a_program_ends_while_the_backend_hangs():
    """A ThreadPoolExecutor's threads would keep the interpreter for ever."""
    run = subprocess.run([sys.executable, "-c", HANGING_PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "[False]\n"
