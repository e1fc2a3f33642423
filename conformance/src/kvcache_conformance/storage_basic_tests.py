"""The Basic part of the kit: what every storage backend does, seen from one thread. Nobody may leave it out.

The contract allows a backend to lose pages; the kit holds a healthy one to keep the few it was given.
"""

import random
from abc import ABC

from kvcache_conformance.storage_bench import SCOPE, StorageBench, content, expect_exists, expect_get, expect_pages, new_keys
from kvcache_conformance.storage_kit import CAPABILITIES, StorageKit
from kvcache_core.contracts.storage import StorageScope

SIZES = (1, 2, 255, 4096, 65_537, 3 * 2**20 + 1)
MANY = 2500
"""Keys in the largest batch: more than the cache sends, and no multiple of a number at which a backend might cut one."""

LARGE = (8 * 2**20 + 3, 3 * 2**20, 6 * 2**20 + 1)
"""Together more than 16 MiB, which limits some messages."""

MODEL_IDS = (
    "org/name",
    "org_name",
    "../up",
    "..",
    ".",
    "/absolute",
    "a\\b",
    "a b:c*?",
    "nul\0l",
    "模型-ü",
    ".hidden",
    "CON",
    "x" * 300,
)
"""From configuration files: none of them may lead out of the place (FAULTS K6)."""


class BasicStorageTests(StorageKit, ABC):
    """One opener, one thread."""

    def test_it_opens_and_may_be_closed_twice(self, bench: StorageBench) -> None:
        storage = bench.open()
        storage.close()
        storage.close()

    def test_what_it_declares_is_known(self) -> None:
        unknown = sorted(self.declared() - CAPABILITIES.keys())
        assert not unknown, f"there is no capability {unknown[0]!r}; the capabilities are {', '.join(CAPABILITIES)}"

    def test_a_page_comes_back_as_it_was_set(self, bench: StorageBench) -> None:
        storage, (key,) = bench.open(), new_keys(1)
        storage.set([key], [content(100)])
        expect_pages(storage, [key], [content(100)])

    def test_a_page_that_was_never_set_is_absent(self, bench: StorageBench) -> None:
        storage, (known, unknown) = bench.open(), new_keys(2)
        expect_pages(storage, [known, unknown], [None, None])
        storage.set([known], [content(100)])
        expect_pages(storage, [unknown], [None])

    def test_answers_stand_in_the_order_of_the_keys(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(20)
        pages = {key: content(50, number) for number, key in enumerate(keys[::2])}
        storage.set(list(pages), list(pages.values()))
        for seed in range(3):
            random.Random(seed).shuffle(keys)
            expect_pages(storage, keys, [pages.get(key) for key in keys])

    def test_a_key_that_is_asked_for_twice_is_answered_twice(self, bench: StorageBench) -> None:
        storage, (known, unknown) = bench.open(), new_keys(2)
        storage.set([known], [content(9)])
        expect_pages(storage, [known, unknown, known, unknown], [content(9), None, content(9), None])

    def test_a_key_that_is_set_twice_in_a_batch_has_its_last_value(self, bench: StorageBench) -> None:
        storage, (key, other) = bench.open(), new_keys(2)
        for size in (70_000, 7):
            storage.set([key, other, key], [content(size, 1), content(5), content(size, 2)])
            expect_pages(storage, [key, other], [content(size, 2), content(5)])

    def test_the_last_writer_wins(self, bench: StorageBench) -> None:
        storage, (key,) = bench.open(), new_keys(1)
        for number, size in enumerate((100, 100, 70_000, 3, 0, 5000)):
            storage.set([key], [content(size, number)])
            expect_pages(storage, [key], [content(size, number)])

    def test_values_of_any_size(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(len(SIZES))
        values = [content(size) for size in SIZES]
        storage.set(keys, values)
        expect_pages(storage, keys, values)

    def test_values_of_many_megabytes(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(len(LARGE))
        whole = content(LARGE[0])
        values = [whole[-size:] for size in LARGE]
        storage.set(keys, values)
        expect_pages(storage, keys, values)

    def test_an_empty_value_is_a_page(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(4)
        storage.set(keys[:3], [b"", bytearray(), memoryview(b"")])
        expect_pages(storage, keys, [b"", b"", b"", None])

    def test_values_of_any_bytes(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(5)
        values = [bytes(range(256)), b"\0" * 300, b"\r\n\n", b"\xff" * 17, "ü".encode("utf-16")]
        storage.set(keys, values)
        expect_get(storage, keys, values)

    def test_every_kind_of_value(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(5)
        whole = content(5000)
        parts = [whole, bytearray(whole), memoryview(whole), memoryview(bytearray(whole)), memoryview(whole)[7:1234]]
        storage.set(keys, parts)
        expect_get(storage, keys, [whole, whole, whole, whole, whole[7:1234]])

    def test_a_buffer_belongs_to_the_caller_again_after_set(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(2)
        buffer = bytearray(content(5000))
        storage.set(keys, [buffer, memoryview(buffer)[100:]])
        buffer[:] = bytes(5000)
        expect_get(storage, keys, [content(5000), content(5000)[100:]])
        buffer.extend(b"it is not exported any more either" * 1000)

    def test_what_was_got_does_not_change(self, bench: StorageBench) -> None:
        storage, (key,) = bench.open(), new_keys(1)
        storage.set([key], [content(5000, 1)])
        got = storage.get([key])
        storage.set([key], [content(5000, 2)])
        storage.delete([key])
        expect_get(storage, [key], [None])
        assert got == [content(5000, 1)], "what get gave was changed by a later call"

    def test_batches_may_be_empty(self, bench: StorageBench) -> None:
        storage = bench.open()
        storage.set([], [])
        storage.delete([])
        expect_pages(storage, [], [])

    def test_batches_may_be_large(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(MANY)
        values = [content(20, number) for number in range(len(keys))]
        storage.set(keys, values)
        expect_pages(storage, keys, values)
        storage.delete(keys)
        expect_pages(storage, keys, [None] * len(keys))

    def test_batches_may_be_any_sequence_and_are_left_alone(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), sorted(new_keys(3), reverse=True)
        mine, values = [*keys], [content(3, number) for number in range(3)]
        storage.set(mine, values)
        expect_pages(storage, mine, values)
        storage.delete(mine)
        assert mine == keys, "a list of keys was changed"
        assert values == [content(3, number) for number in range(3)], "a list of values was changed"
        storage.set(tuple(keys), tuple(values))
        expect_pages(storage, tuple(keys), values)
        storage.delete(tuple(keys))
        expect_exists(storage, tuple(keys), [False] * 3)

    def test_keys_that_differ_in_one_digit_are_different(self, bench: StorageBench) -> None:
        storage, (key,) = bench.open(), new_keys(1)
        flipped = ["f" if digit == "0" else "0" for digit in key]
        keys = [key, *(key[:at] + flipped[at] + key[at + 1 :] for at in range(64))]
        values = [content(10, number) for number in range(65)]
        storage.set(keys, values)
        expect_pages(storage, keys, values)
        storage.delete(keys[1:])
        expect_pages(storage, keys, [values[0], *[None] * 64])

    def test_delete_removes_what_it_names_and_nothing_else(self, bench: StorageBench) -> None:
        storage, keys = bench.open(), new_keys(5)
        values = [content(10, number) for number in range(5)]
        storage.set(keys, values)
        storage.delete([keys[3], keys[1]])
        expect_pages(storage, keys, [values[0], None, values[2], None, values[4]])

    def test_deleting_an_absent_page_is_no_error(self, bench: StorageBench) -> None:
        storage, (known, kept, unknown) = bench.open(), new_keys(3)
        storage.delete([unknown])
        storage.set([known, kept], [content(1), content(2)])
        storage.delete([unknown, known, unknown, known])
        storage.delete([known])
        expect_pages(storage, [known, kept, unknown], [None, content(2), None])

    def test_a_deleted_page_can_be_set_again(self, bench: StorageBench) -> None:
        storage, (key,) = bench.open(), new_keys(1)
        for number in range(3):
            storage.set([key], [content(10, number)])
            expect_pages(storage, [key], [content(10, number)])
            storage.delete([key])
            expect_pages(storage, [key], [None])

    def test_scopes_do_not_disturb_each_other(self, bench: StorageBench) -> None:
        scopes = [SCOPE, StorageScope("conformance", 64), StorageScope("org/name", 16), StorageScope("org_name", 16)]
        opened, keys = [bench.open(scope) for scope in scopes], new_keys(len(scopes))
        for number, (storage, key) in enumerate(zip(opened, keys, strict=True)):
            storage.set([key], [content(100, number)])
        for number, (storage, key) in enumerate(zip(opened, keys, strict=True)):
            expect_pages(storage, [key], [content(100, number)])
            storage.delete([key])
            expect_pages(storage, [key], [None])

    def test_a_model_id_never_leads_out_of_the_place(self, bench: StorageBench) -> None:
        for number, model_id in enumerate(MODEL_IDS):
            storage, (key,) = bench.open(StorageScope(model_id, 16)), new_keys(1)
            storage.set([key], [content(100, number)])
            expect_pages(storage, [key], [content(100, number)])
            bench.close(storage)
        found = bench.beside_the_place()
        assert not found, f"{found[0]!r} was written beside the folder that the store belongs in"
