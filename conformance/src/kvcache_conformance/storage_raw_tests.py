"""The part `raw` of the kit: the backend's answers are held against the store itself, which the test's own hands reach."""

from abc import ABC

import pytest

from kvcache_conformance.storage_bench import SCOPE, StorageBench, content, expect_pages, new_keys, shown
from kvcache_conformance.storage_buffers import inverse, read_into
from kvcache_conformance.storage_kit import RawStorage, StorageKit


class RawStorageTests(StorageKit, ABC):
    """Only for kits that give raw access: override `raw`."""

    def test_what_is_set_is_what_is_stored(self, bench: StorageBench) -> None:
        storage, raw, keys = bench.open(), self._raw(bench), new_keys(3)
        storage.set(keys[:2], [content(5000), b""])
        _expect_stored(raw, keys, [content(5000), b"", None])
        storage.set(keys[:1], [content(10)])
        storage.delete(keys[1:2])
        _expect_stored(raw, keys, [content(10), None, None])

    def test_what_is_stored_is_what_is_got(self, bench: StorageBench) -> None:
        storage, raw, keys = bench.open(), self._raw(bench), new_keys(3)
        raw.write(keys[0], content(5000))
        raw.write(keys[1], b"")
        expect_pages(storage, keys, [content(5000), b"", None])
        raw.write(keys[0], content(4000))
        raw.remove(keys[1])
        expect_pages(storage, keys, [content(4000), None, None])

    def test_a_damaged_page_harms_no_other_and_can_be_set_again(self, bench: StorageBench) -> None:
        """Whether a damaged page is handed out is the backend's choice, because the guard verifies. It may not raise."""
        storage, raw, keys = bench.open(), self._raw(bench), new_keys(3)
        values = [content(5000, number) for number in range(3)]
        for damaged in (values[1][:-1] + bytes([values[1][-1] ^ 1]), values[1][:2500], b"", values[1] + b"junk"):
            storage.set(keys, values)
            raw.write(keys[1], damaged)
            first, middle, last = storage.get(keys)
            assert (first, last) == (values[0], values[2]), "a damaged page changed another page's answer"
            assert middle is None or middle == damaged, "get gave neither what is stored nor None"
            into = read_into(storage, keys, [inverse(value) for value in (values[0], damaged, values[2])])
            if into is not None:
                assert (into[0], into[2]) == (values[0], values[2]), "a damaged page changed what get_into gave of another one"
                assert into[1] in (None, damaged), "get_into gave neither what is stored nor None"
            storage.set(keys[1:2], values[1:2])
            expect_pages(storage, keys, values)

    def test_a_page_that_vanished_is_absent(self, bench: StorageBench) -> None:
        storage, raw, keys = bench.open(), self._raw(bench), new_keys(2)
        storage.set(keys, [content(100)] * 2)
        raw.remove(keys[0])
        expect_pages(storage, keys, [None, content(100)])
        storage.delete(keys)
        expect_pages(storage, keys, [None, None])

    def _raw(self, bench: StorageBench) -> RawStorage:
        raw = self.raw(bench.place, SCOPE)
        if raw is None:
            pytest.skip("only a test class can give access behind the backend's back: override `raw` there")
        return raw


def _expect_stored(raw: RawStorage, keys: list[str], wanted: list[bytes | None]) -> None:
    for number, (key, want) in enumerate(zip(keys, wanted, strict=True)):
        found = raw.read(key)
        assert found == want, f"the store has {shown(found)} for key {number} of {len(keys)}, not {shown(want)}"
