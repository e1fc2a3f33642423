"""The part `buffers` of the kit: what a backend that offers `get_into` does with the memory it is given. Whether the right pages
come is asked in every other part, too: see `expect_pages`.
"""

import sys
import time
from abc import ABC
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import pytest

from kvcache_conformance.storage_bench import StorageBench, content, in_threads, new_keys
from kvcache_conformance.storage_buffers import PageBuffers, expect_into, inverse
from kvcache_conformance.storage_kit import StorageKit
from kvcache_core.contracts.storage import HiCacheStorage

LATER_SECONDS = 0.2
THREADS = 4
ROUNDS = 40
TIMES = 20

NOT_OFFERED = "the backend does not offer get_into, which is optional"


class BufferStorageTests(StorageKit, ABC):
    """Switched by what the backend answers."""

    def test_reading_into_buffers_gives_what_get_gives(self, bench: StorageBench) -> None:
        storage, (whole, cut, many, absent, long, short) = bench.open(), new_keys(6)
        storage.set([whole, cut, many, long, short], [content(n, n) for n in (5000, 5000, 6000, 1000, 1000)])
        sizes = [[5000], [1, 4096, 3, 900], [2] * 3000, [10], [999], [500, 501]]
        places = [PageBuffers(some, bytes(sum(some))) for some in sizes]
        answer = storage.get_into([whole, cut, many, absent, long, short], [place.views for place in places])
        if answer is None:
            pytest.skip(NOT_OFFERED)
        wanted = [5000, 5000, 6000, None, 1000, 1000]
        assert answer == wanted, f"get_into must give the pages' lengths {wanted}, not {answer}"
        for place, n in zip(places, (5000, 5000, 6000), strict=False):
            assert place.value == content(n, n), f"get_into did not fill {len(place.views)} buffers one after another"
        assert not any(place.spilled for place in places), "get_into wrote outside of the buffers"

    def test_who_read_into_buffers_once_goes_on_doing_so(self, bench: StorageBench) -> None:
        storage, (key, other) = bench.open(), new_keys(2)
        offered: list[bool] = []
        for number in range(TIMES):
            storage.set([key], [content(5000, number)])
            offered.append(expect_into(storage, [key], [content(5000, number)]))
            offered.append(expect_into(storage, [key, other], [content(5000, number), None], [[1000] * 5, [100]]))
        storage.delete([key])
        offered.append(expect_into(storage, [key], [None]))
        if not any(offered):
            pytest.skip(NOT_OFFERED)
        at = offered.index(not offered[0]) if not all(offered) else 0
        assert all(offered), f"get_into gave {'None after it gave' if offered[0] else 'a list after None, not'} a list: call {at}"

    def test_batches_and_pages_may_be_empty_for_buffers_too(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(3)
        storage.set(keys, [b"", content(50), b""])
        if not expect_into(storage, keys, [b"", content(50), b""], [[], [50], [0]]):
            pytest.skip(NOT_OFFERED)
        assert expect_into(storage, [], []), "get_into gave None for an empty batch, not an empty list"

    def test_nothing_is_written_to_buffers_after_the_return(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(3)
        values = [content(size) for size in (100, 5000, 70_000)]
        storage.set(keys, values)
        places = [PageBuffers([len(value)], inverse(value)) for value in values]
        if storage.get_into(keys, [place.views for place in places]) is None:
            pytest.skip(NOT_OFFERED)
        mine = [inverse(value) for value in values]
        for place, value in zip(places, mine, strict=True):
            place.fill(value)
        # Nothing else can tell a write that comes later from one that never comes.
        time.sleep(LATER_SECONDS)
        changed = [place.value != value or place.spilled for place, value in zip(places, mine, strict=True)]
        assert not any(changed), "get_into wrote to the buffers again after it had returned"

    def test_threads_read_into_buffers_of_their_own(self, bench: StorageBench) -> None:
        storage = bench.open()
        pages = [{key: content(5000, 10 * thread + at) for at, key in enumerate(new_keys(8))} for thread in range(THREADS)]
        for some in pages:
            storage.set([*some], [*some.values()])
        if not expect_into(storage, [*pages[0]], [*pages[0].values()]):
            pytest.skip(NOT_OFFERED)
        with _threads_take_turns_often():
            in_threads(*(partial(_read_often, storage, some) for some in pages))


def _read_often(storage: HiCacheStorage, pages: dict[str, bytes]) -> None:
    for _ in range(ROUNDS):
        assert expect_into(storage, [*pages], [*pages.values()]), "get_into gave None after it gave a list"


@contextmanager
def _threads_take_turns_often() -> Generator[None]:
    """The few instructions between two steps of a backend are a chance for another thread then."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
