"""Planted faults in what a storage backend does with the buffers it reads pages into."""

import threading
import time

import pytest

from kvcache_conformance.storage_bench import StorageBench
from kvcache_conformance.storage_fault_tests import StorageFaultTests, StorageHistoryTests, kit_of
from kvcache_conformance.storage_toy import ToyStorage

LARGE = 2**16


class FillsTheFirstBufferAlone(ToyStorage):
    def fill(self, value, places):
        return super().fill(value, places[:1])


class SaysWhatItWrote(ToyStorage):
    def fill(self, value, places):
        room = sum(map(len, places))
        return None if value is None else super().fill(value[:room].ljust(room, b"\0"), places)


class TakesAThousandBuffers(ToyStorage):
    """As a system call without a loop around it."""

    def fill(self, value, places):
        taken = places[:1024]
        super().fill(value and value[: sum(map(len, taken))], taken)
        return None if value is None else len(value)


class TakesBuffersForOne(ToyStorage):
    """It writes from the beginning of the first on, and not at the others."""

    def fill(self, value, places):
        if value and len(places) > 1:
            whole = places[0].obj
            assert isinstance(whole, bytearray)
            whole[16 : 16 + len(value)] = value
            return len(value)
        return super().fill(value, places)


class ReadsIntoBuffersOnce(ToyStorage):
    asked = False

    def get_into(self, keys, buffers):
        if self.asked:
            return None
        self.asked = True
        return super().get_into(keys, buffers)


class WantsAKey(ToyStorage):
    def get_into(self, keys, buffers):
        _ = keys[0]
        return super().get_into(keys, buffers)


class WantsAByte(ToyStorage):
    def fill(self, value, places):
        if value is not None:
            _ = places[0]
        return super().fill(value, places)


class TakesEmptyForAbsent(ToyStorage):
    def fill(self, value, places):
        return super().fill(value or None, places)


class WritesAgainLater(ToyStorage):
    def get_into(self, keys, buffers):
        threading.Timer(0.05, super().get_into, (keys, buffers)).start()
        return super().get_into(keys, buffers)


class HasOneScratchBuffer(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        self.scratch = bytearray(2**24)

    def fill(self, value, places):
        if value is not None:
            self.scratch[: len(value)] = value
            time.sleep(0)  # as a file that is read: another thread may go on
            value = bytes(self.scratch[: len(value)])
        return super().fill(value, places)


class KeepsWhatItRead(ToyStorage):
    """A cache of its own for this way of reading."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read: dict[str, bytes] = {}

    def get_into(self, keys, buffers):
        found = self.get(keys)
        self.read = {key: value for key, value in zip(keys, found, strict=True) if value is not None} | self.read
        return [self.fill(self.read.get(key), places) for key, places in zip(keys, buffers, strict=True)]


class ForgetsWhatItReadWhenItIsDeleted(KeepsWhatItRead):
    def delete(self, keys):
        super().delete(keys)
        self.read.clear()


class FindsWhatWasDeleted(KeepsWhatItRead):
    def set(self, keys, values):
        super().set(keys, values)
        self.read.clear()


class FillsOneBufferAKey(ToyStorage):
    def get_into(self, keys, buffers):
        first = dict(zip(reversed(keys), reversed(buffers), strict=True))
        answers = dict(zip(first, super().get_into([*first], [*first.values()]) or (), strict=True))
        return [answers[key] for key in keys]


class FlipsTheLastBit(ToyStorage):
    def fill(self, value, places):
        if value and len(value) > LARGE:
            value = value[:-1] + bytes([value[-1] ^ 1])
        return super().fill(value, places)


class WritesSmallPagesAlone(ToyStorage):
    def fill(self, value, places):
        return len(value) if value and len(value) > LARGE else super().fill(value, places)


class WritesOneMore(ToyStorage):
    def fill(self, value, places):
        if value and isinstance(places[-1].obj, bytearray):
            places[-1].obj[-16] = 0
        return super().fill(value, places)


class RaisesForDamagedPages(ToyStorage):
    """What it reads into buffers has to have the length that was stored."""

    def __init__(self, *args):
        super().__init__(*args)
        self.sizes: dict[str, int] = {}

    def set(self, keys, values):
        super().set(keys, values)
        self.sizes |= {key: len(value) for key, value in zip(keys, values, strict=True)}

    def get_into(self, keys, buffers):
        for key, value in zip(keys, self.get(keys), strict=True):
            if value is not None and len(value) != self.sizes.get(key, len(value)):
                raise ValueError("damaged")
        return super().get_into(keys, buffers)


class TakesAThousandKeys(ToyStorage):
    def get_into(self, keys, buffers):
        return [*(super().get_into(keys[:1000], buffers[:1000]) or ()), *[None] * (len(keys) - 1000)]


class ReadsIntoBuffersByHalves(ToyStorage):
    """A page that was overwritten meanwhile is made of two."""

    def __init__(self, *args):
        super().__init__(*args)
        self.reader_has_come = threading.Event()
        self.written = threading.Event()

    def set(self, keys, values):
        self.reader_has_come.clear()
        self.reader_has_come.wait(0.02)
        super().set(keys, values)
        self.written.set()

    def get_into(self, keys, buffers):
        found = self.get(keys)
        self.written.clear()
        self.reader_has_come.set()
        self.written.wait(0.02)
        for number, (value, later) in enumerate(zip(found, self.get(keys), strict=True)):
            if value is not None and later is not None:
                half = value[: len(value) // 2]
                found[number] = (half + later[len(half) :])[: len(value)].ljust(len(value), b"\0")
        return [self.fill(value, places) for value, places in zip(found, buffers, strict=True)]


def verdict(kit, test, folder) -> str:
    with StorageBench(kit, folder) as bench, pytest.raises(AssertionError) as caught:
        getattr(kit, test)(bench)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fault", "test", "text"),
    [
        (KeepsWhatItRead, "test_the_last_writer_wins", "get_into did not fill the buffers one after another with the value"),
        (FindsWhatWasDeleted, "test_a_deleted_page_can_be_set_again", "get_into gave a page of 10 bytes, not None for key 0"),
        (FlipsTheLastBit, "test_values_of_any_size", "byte 65536 of 65537 is wrong for key 4 of 6"),
        (WritesSmallPagesAlone, "test_values_of_any_size", "gave the length 65537 and wrote nothing to the buffers for key 4"),
        (
            FillsOneBufferAKey,
            "test_a_key_that_is_asked_for_twice_is_answered_twice",
            "and wrote nothing to the buffers for key 2",
        ),
        (ReadsIntoBuffersOnce, "test_who_read_into_buffers_once_goes_on_doing_so", "get_into gave None after it gave a list"),
        (WritesOneMore, "test_a_page_comes_back_as_it_was_set", "get_into wrote outside of the buffers of key 0 of 1"),
        (
            WritesAgainLater,
            "test_nothing_is_written_to_buffers_after_the_return",
            "wrote to the buffers again after it had returned",
        ),
    ],
)
def test_verdicts_are_plain(tmp_path, fault, test, text):
    assert text in verdict(kit_of(fault), test, tmp_path)


def test_a_backend_without_it_is_not_judged(tmp_path):
    class Without(ToyStorage):
        def get_into(self, keys, buffers):
            return None

    kit = kit_of(Without)
    with StorageBench(kit, tmp_path) as bench, pytest.raises(pytest.skip.Exception, match="does not offer get_into"):
        kit.test_who_read_into_buffers_once_goes_on_doing_so(bench)


class TestFaultsOfBuffers(StorageFaultTests):
    parts = ("buffers",)
    faults = (
        (FillsTheFirstBufferAlone, "test_reading_into_buffers_gives_what_get_gives"),
        (SaysWhatItWrote, "test_reading_into_buffers_gives_what_get_gives"),
        (TakesAThousandBuffers, "test_reading_into_buffers_gives_what_get_gives"),
        (TakesBuffersForOne, "test_a_page_comes_back_as_it_was_set"),
        (ReadsIntoBuffersOnce, "test_who_read_into_buffers_once_goes_on_doing_so"),
        (WantsAKey, "test_batches_and_pages_may_be_empty_for_buffers_too"),
        (WantsAByte, "test_batches_and_pages_may_be_empty_for_buffers_too"),
        (WantsAKey, "test_batches_may_be_empty"),
        (TakesEmptyForAbsent, "test_an_empty_value_is_a_page"),
        (WritesAgainLater, "test_nothing_is_written_to_buffers_after_the_return"),
        (HasOneScratchBuffer, "test_threads_read_into_buffers_of_their_own"),
        (KeepsWhatItRead, "test_a_deleted_page_can_be_set_again"),
        (ForgetsWhatItReadWhenItIsDeleted, "test_the_last_writer_wins"),
        (FindsWhatWasDeleted, "test_a_deleted_page_can_be_set_again"),
        (FillsOneBufferAKey, "test_a_key_that_is_asked_for_twice_is_answered_twice"),
        (FlipsTheLastBit, "test_values_of_any_size"),
        (WritesSmallPagesAlone, "test_values_of_any_size"),
        (WritesOneMore, "test_a_page_comes_back_as_it_was_set"),
        (TakesAThousandKeys, "test_batches_may_be_large"),
        (RaisesForDamagedPages, "test_a_damaged_page_harms_no_other_and_can_be_set_again"),
        (ReadsIntoBuffersByHalves, "test_readers_see_a_whole_value_or_none"),
    )


class TestHistoriesOfBuffers(StorageHistoryTests):
    faults = (
        KeepsWhatItRead,
        ForgetsWhatItReadWhenItIsDeleted,
        FindsWhatWasDeleted,
        FillsOneBufferAKey,
        FlipsTheLastBit,
        WritesOneMore,
    )
