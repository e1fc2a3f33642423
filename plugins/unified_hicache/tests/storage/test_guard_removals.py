"""Who hears of a bad page may write it anew at once: its removal must be over by then, or it would take the new page."""

import threading

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame

KEY = "ab" * 32


class SlowToRemove(HiCacheStorage):
    """Holds one bad page; `delete` waits until it may go on."""

    def __init__(self):
        self.pages = {KEY: b"bad"}
        self.asked, self.go_on = threading.Event(), threading.Event()

    def exists(self, keys):
        return [key in self.pages for key in keys]

    def get(self, keys):
        return [self.pages.get(key) for key in keys]

    def set(self, keys, values):
        self.pages.update(zip(keys, map(bytes, values), strict=True))

    def delete(self, keys):
        self.asked.set()
        assert self.go_on.wait(30)
        for key in keys:
            self.pages.pop(key, None)


def test_a_fetch_is_delivered_after_its_bad_pages_are_removed(room):
    backend = SlowToRemove()
    guard = StorageGuard(backend, GuardSettings(timeout=30.0), CacheCounters(), ())
    try:
        heard = []
        frame = PageFrame([PageArray("a", "uint8", (4,))])
        assert guard.fetch([KEY], frame, room(1, frame), heard.append)
        while not backend.asked.wait(0.001):
            guard.poll()
        for _ in range(20):
            guard.wait(0.001)
            guard.poll()
        assert not heard
        backend.go_on.set()
        while not heard:
            guard.wait(1.0)
            guard.poll()
        assert heard == [[None]] and not backend.pages and guard.in_flight == 0
    finally:
        backend.go_on.set()
        guard.close(5.0)


class TestFaultsOfRemovals(PlantedFaultTests):
    faults = (
        Fault(
            "a fetch does not wait for the removal",
            test_a_fetch_is_delivered_after_its_bad_pages_are_removed,
            Replacement(StorageGuard, "_finish", "or operation in self._removals.values()", ""),
        ),
    )
