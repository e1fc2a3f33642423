"""The part `threads` of the kit: a backend is called from several threads at once. Basic, too: nobody may leave it out."""

from abc import ABC
from functools import partial

from kvcache_conformance.storage_bench import StorageBench, content, expect_pages, in_threads, new_keys, shown
from kvcache_conformance.storage_buffers import inverse, read_into
from kvcache_conformance.storage_kit import StorageKit
from kvcache_core.contracts.storage import HiCacheStorage

THREADS = 4
ROUNDS = 25


class ThreadStorageTests(StorageKit, ABC):
    """One opener, several threads."""

    def test_it_works_in_a_thread_that_did_not_open_it(self, bench: StorageBench) -> None:
        storage, (key,) = bench.open(), new_keys(1)

        def work() -> None:
            storage.set([key], [content(100)])
            expect_pages(storage, [key], [content(100)])

        in_threads(work)
        expect_pages(storage, [key], [content(100)])

    def test_threads_with_keys_of_their_own_lose_nothing(self, bench: StorageBench) -> None:
        storage = bench.open()
        keys = [new_keys(6) for _ in range(THREADS)]

        def work(thread: int) -> None:
            for number in range(ROUNDS):
                values = [content(500 + thread, number + at) for at in range(6)]
                storage.set(keys[thread], values)
                expect_pages(storage, keys[thread], values)
                storage.delete(keys[thread][:2])
                expect_pages(storage, keys[thread], [None, None, *values[2:]])

        in_threads(*(partial(work, thread) for thread in range(THREADS)))
        for thread in range(THREADS):
            kept = [content(500 + thread, ROUNDS - 1 + at) for at in range(2, 6)]
            expect_pages(storage, keys[thread], [None, None, *kept])

    def test_readers_see_a_whole_value_or_none(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(3)
        values = [content(size, size) for size in (10, 70_000, 3000, 0)]

        writers = [0, 1]

        def write(first: int) -> None:
            try:
                for number in range(first, first + ROUNDS):
                    storage.set(keys, [values[number % len(values)]] * 3)
                    if number % 5 == 0:
                        storage.delete(keys[:1])
            finally:
                writers.remove(first)

        def read() -> None:
            while writers:
                expect_whole(storage, keys, values)

        in_threads(partial(write, 0), partial(write, 1), read, read)
        expect_whole(storage, keys[1:], values)
        missing = [key for key, there in zip(keys[1:], storage.exists(keys[1:]), strict=True) if not there]
        assert not missing, "a key that was only ever set and overwritten is absent"


def expect_whole(storage: HiCacheStorage, keys: list[str], values: list[bytes]) -> None:
    """Each key has one of the values, or none. `values`: no two have the same length."""
    found = storage.get(keys)
    assert len(found) == len(keys), f"get gave {len(found)} answers for {len(keys)} keys"
    for got in found:
        assert got is None or got in values, f"get gave {shown(got)}, which nobody has set"
    # Buffers for each of the values: only those that are as long as what is there show it.
    into = read_into(storage, keys * len(values), [inverse(value) for value in values for _ in keys]) or []
    known: list[bytes | int | None] = [None, *values, *map(len, values)]
    for got in into:
        assert got in known, f"get_into gave {shown(got)}, which nobody has set"
