"""S1 with real servers behind the storage guard: the breaker opens while one hangs, is gone or full, and closes by itself."""

from collections.abc import Callable, Iterator

import pytest

from kvcache_conformance.storage_numbered import numbered_key
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard

KEYS = [numbered_key(number) for number in range(40)]
PAGE = 100_000
SETTINGS = GuardSettings(timeout=3.0, batch_bytes=4 * PAGE, failures_to_open=2, retry_after=0.05)


class Guarded:
    """A guard over a store, whose requests are waited for."""

    def __init__(self, storage: HiCacheStorage) -> None:
        self.counters = CacheCounters()
        self.guard = StorageGuard(storage, SETTINGS, self.counters, [])

    def exists(self, keys) -> list[bool] | None:
        """None: refused."""
        return self._answer(lambda on_done: self.guard.exists(keys, on_done))

    def store(self, keys) -> list[bool] | None:
        pages = [key.encode()[:1] * PAGE for key in keys]
        return self._answer(lambda on_done: self.guard.store(keys, PAGE, lambda: pages, on_done))

    def until(self, true: Callable[[], bool]) -> None:
        """Poll, as an engine does, until something is true."""
        while not true():
            self.guard.wait(0.02)
            self.guard.poll()

    def _answer(self, ask) -> list[bool] | None:
        answers: list[list[bool]] = []
        if not ask(answers.append):
            return None
        self.until(lambda: bool(answers))
        return answers[0]


@pytest.fixture
def guarded() -> Iterator[Callable[[HiCacheStorage], Guarded]]:
    made: list[Guarded] = []

    def of(storage: HiCacheStorage) -> Guarded:
        made.append(Guarded(storage))
        return made[-1]

    yield of
    for one in made:
        one.guard.close(5.0)


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_a_server_that_is_gone_is_left_alone_and_used_again_when_it_is_back(stores, own_valkey, guarded, how):
    made = guarded(stores.open(own_valkey, socket_timeout=0.5))
    assert made.store(KEYS[:8]) == [True] * 8
    getattr(own_valkey, how)()
    found = []
    while (answer := made.exists(KEYS[:8])) is not None:
        found.append(answer)
    assert found == [[False] * 8] * SETTINGS.failures_to_open
    assert made.guard.refuses("read")
    assert not made.guard.refuses("write")  # nobody has tried to
    assert made.store(KEYS[:8]) == [False] * 8
    assert made.counters.storage_state.startswith("open: ")
    assert f"PagesError: 4 of 4 pages were not stored: 127.0.0.1:{own_valkey.port}: " in made.counters.storage_state
    assert made.counters.misses["storage error"] == 8 * SETTINGS.failures_to_open

    if how == "pause":
        own_valkey.resume()
    else:
        own_valkey.start()
    made.until(lambda: not made.guard.refuses("read") and not made.guard.refuses("write"))
    assert made.exists(KEYS[:8]) == [how == "pause"] * 8
    assert made.store(KEYS[8:16]) == [True] * 8
    assert made.exists(KEYS[8:16]) == [True] * 8
    assert made.counters.storage_state == "ok"


def test_a_full_server_is_still_read_and_written_again_when_there_is_room(stores, own_valkey, guarded):
    used = dict(line.split(":", 1) for line in own_valkey.ask("INFO", "memory").decode().splitlines() if ":" in line)
    own_valkey.ask("CONFIG", "SET", "maxmemory", int(used["used_memory"]) + 12 * PAGE)
    made = guarded(stores.open(own_valkey, max_value_bytes=PAGE))
    taken = []
    while (answer := made.store(KEYS[len(taken) :][:4])) is not None:
        taken += answer
    assert 0 < sum(taken) < 16
    assert made.guard.refuses("write")
    assert "OutOfMemoryError" in made.counters.storage_state
    stored = [key for key, was in zip(KEYS, taken, strict=False) if was]
    assert made.exists(stored) == [True] * len(stored)
    own_valkey.ask("CONFIG", "SET", "maxmemory", 0)
    made.until(lambda: not made.guard.refuses("write"))
    assert made.store(KEYS[-4:]) == [True] * 4


def test_one_node_of_three_that_hangs_opens_nothing(stores, own_cluster, guarded):
    """The others' pages are found, and written, and what is stored is said page by page."""
    made = guarded(stores.open_cluster(own_cluster, socket_timeout=0.5))
    assert made.store(KEYS[:20]) == [True] * 20
    own_cluster[1].pause()
    for _ in range(2 * SETTINGS.failures_to_open):
        found = made.exists(KEYS[:20])
        assert found is not None
        assert 5 < sum(found) < 18
    taken = made.store(KEYS[20:])
    assert taken is not None
    assert 5 < sum(taken) < 18
    assert made.exists(KEYS[20:]) == taken
    assert not made.guard.refuses("read")
    assert not made.guard.refuses("write")
    assert "storage timeout" not in made.counters.misses
    own_cluster[1].resume()
