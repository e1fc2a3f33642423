"""The Optional parts of the kit, each switched by the capability of its name: `persistent`, `shared`, `scan`.

`capacity` has a file of its own, `storage_capacity_tests`.
"""

import time
from abc import ABC
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from kvcache_conformance.storage_basic_tests import MODEL_IDS
from kvcache_conformance.storage_bench import SCOPE, StorageBench, content, expect_exists, expect_pages, in_threads, new_keys
from kvcache_conformance.storage_kit import StorageKit
from kvcache_conformance.storage_processes import OtherProcess, StorageOpener, fetch_pages, store_pages, write_and_read
from kvcache_conformance.storage_thread_tests import expect_whole
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope

A_DAY = 86_400.0


class PersistentStorageTests(StorageKit, ABC):
    """Pages survive closing and opening again."""

    def test_pages_are_there_after_opening_again(self, bench: StorageBench) -> None:
        self.part("persistent")
        storage, keys = bench.open(), new_keys(5)
        storage.set(keys, [content(size) for size in (0, 1, 5000, 70_000, 10)])
        storage.set(keys[4:], [content(20)])
        storage.delete(keys[1:2])
        bench.close(storage)
        expect_pages(bench.open(), keys, [b"", None, content(5000), content(70_000), content(20)])

    def test_one_who_only_looks_finds_what_is_there(self, bench: StorageBench) -> None:
        """As `kvcache storage inspect` opens it."""
        self.part("persistent")
        storage, keys = bench.open(), new_keys(3)
        storage.set(keys[:2], [content(10), content(5000)])
        bench.close(storage)
        looking = bench.open(replace(SCOPE, read_only=True))
        expect_pages(looking, keys, [content(10), content(5000), None])
        bench.close(looking)
        expect_pages(bench.open(), keys, [content(10), content(5000), None])

    def test_changes_go_on_after_opening_again(self, bench: StorageBench) -> None:
        self.part("persistent")
        keys = new_keys(3)
        for number in range(4):
            storage = bench.open()
            storage.set(keys, [content(100, number)] * 3)
            storage.delete(keys[number % 3 :][:1])
            expect_pages(storage, keys, [None if at == number % 3 else content(100, number) for at in range(3)])
            bench.close(storage)

    def test_pages_of_another_process_are_there(self, bench: StorageBench) -> None:
        self.part("persistent")
        keys = new_keys(3)
        values = [content(size) for size in (0, 100, 70_000)]
        opener = self._opener(bench)
        OtherProcess(store_pages, opener, keys[:2], values[:2]).result()
        storage = bench.open()
        expect_pages(storage, keys, [*values[:2], None])
        storage.set(keys[2:], values[2:])
        bench.close(storage)
        found = OtherProcess(fetch_pages, opener, keys).result()
        assert found == values, "another process does not find the pages of this one"

    def _opener(self, bench: StorageBench) -> StorageOpener:
        opener = self.opener(bench.place, SCOPE)
        if opener is None:
            pytest.skip("only an installed backend can be opened in another process: see InstalledStorageTests")
        return opener


class SharedStorageTests(StorageKit, ABC):
    """Several openers at once."""

    def test_openers_see_each_others_pages(self, bench: StorageBench) -> None:
        self.part("shared")
        first, second, (key,) = bench.open(), bench.open(), new_keys(1)
        expect_pages(second, [key], [None])
        first.set([key], [content(100, 1)])
        expect_pages(second, [key], [content(100, 1)])
        second.set([key], [content(50, 2)])
        expect_pages(first, [key], [content(50, 2)])
        first.delete([key])
        expect_pages(second, [key], [None])

    def test_an_opener_goes_on_when_another_is_closed(self, bench: StorageBench) -> None:
        self.part("shared")
        first, second, keys = bench.open(), bench.open(), new_keys(2)
        first.set(keys[:1], [content(100)])
        bench.close(first)
        expect_pages(second, keys, [content(100), None])
        second.set(keys, [content(7), content(8)])
        expect_pages(bench.open(), keys, [content(7), content(8)])

    def test_openers_that_write_the_same_keys_at_once(self, bench: StorageBench) -> None:
        self.part("shared")
        storages, keys = [bench.open() for _ in range(3)], new_keys(4)
        values = [content(size, size) for size in (10, 70_000, 3000)]

        def work(storage: HiCacheStorage, first: int) -> None:
            for number in range(first, first + 20):
                storage.set(keys, [values[number % len(values)]] * len(keys))
                expect_whole(storage, keys, values)

        in_threads(*(partial(work, storage, at) for at, storage in enumerate(storages)))
        for storage in storages:
            expect_whole(storage, keys, values)
            expect_exists(storage, keys, [True] * len(keys))

    def test_processes_that_write_the_same_keys_at_once(self, bench: StorageBench) -> None:
        self.part("shared")
        (mine, theirs, *keys), values = new_keys(6), [content(size, size) for size in (10, 70_000, 3000)]
        opener = self.opener(bench.place, SCOPE)
        if opener is None:
            pytest.skip("only an installed backend can be opened in another process: see InstalledStorageTests")
        storage = bench.open()
        storage.set([mine], values[:1])
        other = OtherProcess(write_and_read, opener, [theirs, *keys], values, 30, mine)
        for number in range(60):
            storage.set(keys, [values[number % len(values)]] * len(keys))
            expect_whole(storage, keys, values)
        at_first, found = other.result()
        assert at_first == values[0], "another process does not see a page of this one, which has it open"
        expect_exists(storage, [theirs], [True])
        assert all(value is None or value in values for value in found), "another process has read what nobody has set"
        expect_whole(storage, keys, values)
        expect_exists(storage, keys, [True] * len(keys))


class ScanStorageTests(StorageKit, ABC):
    """`scan` names what is there."""

    def test_scan_names_every_page_of_every_scope(self, bench: StorageBench) -> None:
        self.part("scan")
        scopes = [SCOPE, StorageScope("conformance", 64), StorageScope("org/name", 16), StorageScope("org_name", 16)]
        keys, wanted = new_keys(8), dict[str, tuple[str, int, int]]()
        for number, scope in enumerate(scopes):
            storage = bench.open(scope)
            mine = keys[2 * number :][:2]
            storage.set(mine, [content(0), content(1000 + number)])
            wanted |= {key: (*_tuple(scope), size) for key, size in zip(mine, (0, 1000 + number), strict=True)}
        found = [page for page in bench.open().scan() if page.key in wanted]
        named = {page.key: (page.model_id, page.page_size, page.nbytes) for page in found}
        for key, page in wanted.items():
            assert named.get(key) == page, f"scan gave {named.get(key)} for a page, not (model_id, page_size, nbytes) = {page}"
        assert len(found) == len(wanted), "scan named a page twice"

    def test_scan_gives_model_ids_as_they_were_given(self, bench: StorageBench) -> None:
        self.part("scan")
        keys = dict(zip(MODEL_IDS, new_keys(len(MODEL_IDS)), strict=True))
        for model_id, key in keys.items():
            storage = bench.open(StorageScope(model_id, 16))
            storage.set([key], [content(10)])
            if "persistent" in self.declared():
                bench.close(storage)
        named = {page.key: page.model_id for page in bench.open().scan()}
        for model_id, key in keys.items():
            assert key in named, f"scan left out the page of the model {model_id!r}"
            assert named[key] == model_id, f"scan says that a page is of the model {named[key]!r}; it was given as {model_id!r}"

    def test_scan_says_when_a_page_was_used(self, bench: StorageBench) -> None:
        """As exactly as the store keeps it: one that knows whole seconds may err by one."""
        self.part("scan")
        storage, keys = bench.open(), new_keys(3)
        for key in keys:
            storage.set([key], [content(10)])
        now = time.time()
        first, second = ({page.key: page.used for page in storage.scan() if page.key in keys} for _ in range(2))
        times = [first[key] for key in keys]
        error = 1.0 if all(used.is_integer() for used in times) else 0.0
        assert all(abs(used - now) < A_DAY for used in times), "`used` is not in seconds since the epoch"
        for key in keys:
            assert abs(second[key] - first[key]) <= error, (
                f"`used` of a page grew by {second[key] - first[key]:g} s from one scan to the next, and nobody used it"
            )
        for older, newer in pairwise(times):
            assert older <= newer + error, f"`used` of a page is {older - newer:g} s later than that of one written after it"

    def test_scan_follows_changes(self, bench: StorageBench) -> None:
        self.part("scan")
        storage, keys = bench.open(), new_keys(3)
        storage.set(keys, [content(10)] * 3)
        storage.set(keys[:1], [content(2000)])
        storage.delete(keys[1:2])
        found = {page.key: page.nbytes for page in storage.scan() if page.key in keys}
        assert keys[1] not in found, "scan named a page that was deleted"
        assert found == {keys[0]: 2000, keys[2]: 10}, f"scan gave pages of {sorted(found.values())} bytes, not of [10, 2000]"

    def test_what_scan_names_can_be_deleted_meanwhile(self, bench: StorageBench) -> None:
        """As `kvcache storage prune` does it: an opener for each scope."""
        self.part("scan")
        scopes = [SCOPE, StorageScope("org/name", 64)]
        opened = {_tuple(scope): bench.open(scope) for scope in scopes}
        keys = {scope: new_keys(30) for scope in opened}
        for scope, storage in opened.items():
            storage.set(keys[scope], [content(100)] * 30)
        mine = {key for some in keys.values() for key in some}
        for page in bench.open().scan():
            if page.key in mine:
                opened[page.model_id, page.page_size].delete([page.key])
        for scope, storage in opened.items():
            expect_exists(storage, keys[scope], [False] * 30)
        assert not [page for page in bench.open().scan() if page.key in mine], "scan named a page that was deleted"


def _tuple(scope: StorageScope) -> tuple[str, int]:
    return scope.model_id, scope.page_size
