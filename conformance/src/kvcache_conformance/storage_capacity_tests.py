"""The part `capacity` of the kit: an option `max_bytes`, and what goes when it is reached. Switched by the capability."""

from abc import ABC
from dataclasses import replace

import pytest

from kvcache_conformance.storage_bench import (
    SCOPE,
    StorageBench,
    content,
    expect_exists,
    expect_pages,
    new_keys,
    set_or_refuse,
)
from kvcache_conformance.storage_clock import fast_clock
from kvcache_conformance.storage_kit import StorageKit
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope

PAGE_BYTES = 16_384
LIMIT = 10 * PAGE_BYTES
AN_HOUR = 3600.0


class CapacityStorageTests(StorageKit, ABC):
    """`max_bytes` bounds what is kept. Nothing is said of how close a backend comes to it, except that it is half used."""

    def test_three_times_the_limit_leaves_the_newest(self, bench: StorageBench) -> None:
        self.part("capacity")
        storage, keys = bench.open_limited(LIMIT), new_keys(30)
        for number, key in enumerate(keys):
            storage.set([key], [content(PAGE_BYTES, number)])
            _expect_bounded(storage, keys, LIMIT)
            # Asking is no use: the oldest goes all the same.
            storage.exists(keys[:1])
        expect_pages(storage, keys[-5:], [content(PAGE_BYTES, number) for number in range(25, 30)])
        expect_exists(storage, keys[:10], [False] * 10)

    def test_what_is_read_is_used(self, bench: StorageBench) -> None:
        """Two old pages are read after every write, one of them by `get_into` where it is offered: they are always among the four
        pages that were used last, and ten have room."""
        self.part("capacity")
        storage, (got, got_into, *keys) = bench.open_limited(LIMIT), new_keys(32)
        storage.set([got, got_into], [content(PAGE_BYTES)] * 2)
        with fast_clock() as let_pass:
            for number, key in enumerate(keys):
                let_pass(AN_HOUR)
                storage.set([key], [content(PAGE_BYTES, number)])
                _expect_bounded(storage, [got, got_into, *keys], LIMIT)
                let_pass(AN_HOUR)
                for call, found in (("get", storage.get([got])), ("get_into", _read_into(storage, got_into))):
                    assert found in ([content(PAGE_BYTES)], [PAGE_BYTES]), (
                        f"a page that `{call}` has read after every write is gone after {number + 1} writes, and newer ones are "
                        "kept: what was used least recently goes first, and reading is use"
                    )
        expect_exists(storage, keys[:10], [False] * 10)
        expect_exists(storage, keys[-3:], [True] * 3)

    def test_the_limit_is_of_all_scopes_together(self, bench: StorageBench) -> None:
        self.part("capacity")
        if not self.declared() & {"persistent", "shared"}:
            pytest.skip("what one opener stores is no other's: the backend declares neither 'persistent' nor 'shared'")
        scopes = [SCOPE, StorageScope("conformance", 64), StorageScope("org/name", 16)]
        keys = {scope: new_keys(8) for scope in scopes}
        at_once = "shared" in self.declared()
        opened: dict[StorageScope, HiCacheStorage] = {}
        for scope in scopes:
            opened[scope] = bench.open_limited(LIMIT, scope)
            for number, key in enumerate(keys[scope]):
                opened[scope].set([key], [content(PAGE_BYTES, number)])
            expect_exists(opened[scope], keys[scope][-5:], [True] * 5)
            if not at_once:
                bench.close(opened[scope])
        kept = 0
        for scope in scopes:
            storage = opened[scope] if at_once else bench.open_limited(LIMIT, scope)
            kept += PAGE_BYTES * sum(storage.exists(keys[scope]))
            if not at_once:
                bench.close(storage)
        assert kept <= LIMIT, (
            f"{kept} bytes are kept of {len(scopes)} scopes together, the limit is {LIMIT}: it is one for the whole store"
        )

    def test_a_batch_above_the_limit_leaves_it_bounded(self, bench: StorageBench) -> None:
        self.part("capacity")
        storage, keys = bench.open_limited(LIMIT), new_keys(30)
        storage.set(keys, [content(PAGE_BYTES, number) for number in range(30)])
        _expect_bounded(storage, keys, LIMIT)
        for number, value in enumerate(storage.get(keys)):
            assert value in (None, content(PAGE_BYTES, number)), "a value is wrong"

    def test_overwriting_and_deleting_take_no_room(self, bench: StorageBench) -> None:
        self.part("capacity")
        storage, keys = bench.open_limited(LIMIT), new_keys(5)
        for number in range(6):
            storage.set(keys, [content(PAGE_BYTES, number)] * 5)
        expect_pages(storage, keys, [content(PAGE_BYTES, 5)] * 5)
        for number in range(6):
            more = new_keys(3)
            storage.set(more, [content(PAGE_BYTES // 2, number)] * 3)
            storage.delete(more)
        expect_pages(storage, keys, [content(PAGE_BYTES, 5)] * 5)

    def test_a_value_above_the_limit_harms_nothing(self, bench: StorageBench) -> None:
        self.part("capacity")
        storage, (huge, small, *others) = bench.open_limited(LIMIT), new_keys(4)
        set_or_refuse(storage, [huge], [content(2 * LIMIT)])
        expect_pages(storage, [huge], [None])
        storage.set([small], [content(PAGE_BYTES)])
        expect_pages(storage, [small], [content(PAGE_BYTES)])
        set_or_refuse(storage, [others[0], huge, others[1]], [content(PAGE_BYTES), content(2 * LIMIT), content(PAGE_BYTES)])
        expect_pages(storage, [huge, small], [None, content(PAGE_BYTES)])

    def test_a_lower_limit_holds_after_opening_again(self, bench: StorageBench) -> None:
        self.part("capacity")
        self.part("persistent")
        storage, keys = bench.open_limited(LIMIT), new_keys(9)
        storage.set(keys[:8], [content(PAGE_BYTES)] * 8)
        bench.close(storage)
        storage = bench.open_limited(LIMIT // 2)
        storage.set(keys[8:], [content(PAGE_BYTES)])
        _expect_bounded(storage, keys, LIMIT // 2)
        expect_exists(storage, keys[8:], [True])

    def test_one_who_only_looks_makes_no_room(self, bench: StorageBench) -> None:
        self.part("capacity")
        self.part("persistent")
        storage, keys = bench.open_limited(LIMIT), new_keys(8)
        storage.set(keys, [content(PAGE_BYTES, number) for number in range(8)])
        bench.close(storage)
        bench.close(bench.open_limited(LIMIT // 4, replace(SCOPE, read_only=True)))
        expect_pages(bench.open_limited(LIMIT), keys, [content(PAGE_BYTES, number) for number in range(8)])


def _read_into(storage: HiCacheStorage, key: str) -> list[int | None] | list[bytes | None]:
    """What `get_into` says, or `get` where the backend does not offer that."""
    answer = storage.get_into([key], [[memoryview(bytearray(PAGE_BYTES))]])
    return storage.get([key]) if answer is None else answer


def _expect_bounded(storage: HiCacheStorage, keys: list[str], limit: int) -> None:
    """All values have PAGE_BYTES."""
    kept = PAGE_BYTES * sum(storage.exists(keys))
    assert kept <= limit, f"{kept} bytes are kept, the limit is {limit}"
