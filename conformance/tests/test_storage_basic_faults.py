"""Planted faults in what every storage backend does: its answers, its writing, its deleting."""

from contextlib import suppress
from typing import Any

import pytest

from kvcache_conformance.storage_bench import SCOPE, StorageBench
from kvcache_conformance.storage_fault_tests import StorageFaultTests, StorageHistoryTests, kit_of
from kvcache_conformance.storage_toy import ToyRaw, ToyStorage, ToyStorageKit


class AnswersInTheOrderOfTheDictionary(ToyStorage):
    def get(self, keys):
        order = [key for _, _, key in self.disk.pages]
        found = dict(zip(keys, super().get(keys), strict=True))
        return [found[key] for key in sorted(keys, key=lambda key: order.index(key) if key in order else -1)]


class LeavesOutAbsentPages(ToyStorage):
    def get(self, keys) -> Any:
        return [value for value in super().get(keys) if value is not None]


class GivesOneMore(ToyStorage):
    def get(self, keys):
        return [*super().get(keys), None] if keys else []


class AnswersEachKeyOnce(ToyStorage):
    def exists(self, keys):
        return super().exists(list(dict.fromkeys(keys)))


class SaysOneAndZero(ToyStorage):
    def exists(self, keys) -> Any:
        return [int(there) for there in super().exists(keys)]


class AnswersWithATuple(ToyStorage):
    def get(self, keys) -> Any:
        return tuple(super().get(keys))


class HandsOutItsBuffers(ToyStorage):
    def get(self, keys) -> Any:
        return [None if value is None else bytearray(value) for value in super().get(keys)]


class ReusesItsAnswer(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        self.answer = []

    def get(self, keys):
        self.answer[:] = super().get(keys)
        return self.answer


class TakesEmptyForAbsent(ToyStorage):
    def get(self, keys):
        return [value or None for value in super().get(keys)]


class RaisesForAbsentPages(ToyStorage):
    def get(self, keys) -> Any:
        return [self.disk.pages[self.place(key)] for key in keys]


class ClaimsWhatItLost(ToyStorage):
    def exists(self, keys):
        return [True] * len(keys)


class SortsTheCallersKeys(ToyStorage):
    def exists(self, keys):
        if isinstance(keys, list):
            keys.sort()
        return super().exists(keys)


class WantsLists(ToyStorage):
    def delete(self, keys: Any):
        super().delete([].__add__(keys))


class LosesOverwrites(ToyStorage):
    def put(self, place, value):
        if place not in self.disk.pages:
            super().put(place, value)


class OverwritesInPlace(ToyStorage):
    """As a file that is not truncated."""

    def put(self, place, value):
        super().put(place, value + self.disk.pages.get(place, b"")[len(value) :])


class Truncates(ToyStorage):
    def put(self, place, value):
        super().put(place, value[: 2**20])


class DropsLargeValues(ToyStorage):
    def put(self, place, value):
        if len(value) <= 4 * 2**20:
            super().put(place, value)


class StopsAtZeros(ToyStorage):
    def put(self, place, value):
        super().put(place, value.rstrip(b"\0"))


class TranslatesLineEnds(ToyStorage):
    def put(self, place, value):
        super().put(place, value.replace(b"\r\n", b"\n"))


class KeepsTheFirstOfABatch(ToyStorage):
    def set(self, keys, values):
        pages = dict(zip(reversed(keys), reversed(values), strict=True))
        super().set(list(pages), list(pages.values()))


class WantsBytes(ToyStorage):
    def set(self, keys, values: Any):
        super().set(keys, [value + b"" for value in values])


class KeepsTheCallersBuffer(ToyStorage):
    def set(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            self.disk.pages[self.place(key)] = value  # pyright: ignore[reportArgumentType]

    def get(self, keys):
        return [None if value is None else bytes(value) for value in super().get(keys)]


class HasNoRoomForLargeBatches(ToyStorage):
    def set(self, keys, values):
        super().set(keys[:999], values[:999])


class ShortensKeys(ToyStorage):
    def place(self, key):
        return super().place(key[:60])


class RefusesEmptyBatches(ToyStorage):
    def set(self, keys, values):
        _ = keys[0]
        super().set(keys, values)


class RaisesForAbsentDeletes(ToyStorage):
    def delete(self, keys):
        for key in keys:
            del self.disk.pages[self.place(key)]


class DeletesByFirstDigits(ToyStorage):
    def delete(self, keys):
        gone = {key[:8] for key in keys}
        for place in [place for place in self.disk.pages if place[2][:8] in gone]:
            del self.disk.pages[place]


class DeletesNothing(ToyStorage):
    def delete(self, keys):
        pass


class BuriesDeletedKeys(ToyStorage):
    """As a tombstone that wins over a later write."""

    def delete(self, keys):
        super().delete(keys)
        self.disk.pages |= {(*self.place(key), "gone"): b"" for key in keys}  # pyright: ignore[reportAttributeAccessIssue]

    def put(self, place, value):
        if (*place, "gone") not in self.disk.pages:
            super().put(place, value)


class ClosesOnce(ToyStorage):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class KnowsOneScopeAtATime(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        if any(place[:2] != (self.scope.model_id, self.scope.page_size) for place in self.disk.pages):
            self.disk.pages.clear()

    def set(self, keys, values):
        for place in [place for place in self.disk.pages if place[:2] != self.place("")[:2]]:
            del self.disk.pages[place]
        super().set(keys, values)


class LeavesItsPlace(ToyStorageKit):
    """A folder for each model, under whatever name."""

    def open_storage(self, place, scope):
        with suppress(OSError, ValueError):
            (place / scope.model_id).mkdir(parents=True, exist_ok=True)
        return super().open_storage(place, scope)


def test_leaving_the_place_is_noticed(tmp_path):
    kit = LeavesItsPlace()
    with StorageBench(kit, tmp_path) as bench, pytest.raises(AssertionError, match="'up' was written beside the folder"):
        kit.test_a_model_id_never_leads_out_of_the_place(bench)


def test_raw_access_is_past_the_backend(tmp_path):
    kit = kit_of(ClaimsWhatItLost)
    with StorageBench(kit, tmp_path) as bench:
        raw = kit.raw(bench.place, SCOPE)
        assert isinstance(raw, ToyRaw) and raw.read("00" * 32) is None


class TestFaultsOfTheBasics(StorageFaultTests):
    parts = ("basic",)
    elsewhere = frozenset({"test_what_it_declares_is_known", "test_a_model_id_never_leads_out_of_the_place"})
    faults = (
        (AnswersInTheOrderOfTheDictionary, "test_answers_stand_in_the_order_of_the_keys"),
        (LeavesOutAbsentPages, "test_a_page_that_was_never_set_is_absent"),
        (GivesOneMore, "test_a_page_comes_back_as_it_was_set"),
        (AnswersEachKeyOnce, "test_a_key_that_is_asked_for_twice_is_answered_twice"),
        (SaysOneAndZero, "test_a_page_comes_back_as_it_was_set"),
        (AnswersWithATuple, "test_batches_may_be_empty"),
        (HandsOutItsBuffers, "test_a_page_comes_back_as_it_was_set"),
        (ReusesItsAnswer, "test_what_was_got_does_not_change"),
        (TakesEmptyForAbsent, "test_an_empty_value_is_a_page"),
        (RaisesForAbsentPages, "test_a_page_that_was_never_set_is_absent"),
        (ClaimsWhatItLost, "test_a_page_that_was_never_set_is_absent"),
        (SortsTheCallersKeys, "test_batches_may_be_any_sequence_and_are_left_alone"),
        (WantsLists, "test_batches_may_be_any_sequence_and_are_left_alone"),
        (LosesOverwrites, "test_the_last_writer_wins"),
        (OverwritesInPlace, "test_the_last_writer_wins"),
        (Truncates, "test_values_of_any_size"),
        (DropsLargeValues, "test_values_of_many_megabytes"),
        (StopsAtZeros, "test_values_of_any_bytes"),
        (TranslatesLineEnds, "test_values_of_any_bytes"),
        (KeepsTheFirstOfABatch, "test_a_key_that_is_set_twice_in_a_batch_has_its_last_value"),
        (WantsBytes, "test_every_kind_of_value"),
        (KeepsTheCallersBuffer, "test_a_buffer_belongs_to_the_caller_again_after_set"),
        (HasNoRoomForLargeBatches, "test_batches_may_be_large"),
        (ShortensKeys, "test_keys_that_differ_in_one_digit_are_different"),
        (RefusesEmptyBatches, "test_batches_may_be_empty"),
        (RaisesForAbsentDeletes, "test_deleting_an_absent_page_is_no_error"),
        (DeletesByFirstDigits, "test_keys_that_differ_in_one_digit_are_different"),
        (DeletesNothing, "test_delete_removes_what_it_names_and_nothing_else"),
        (BuriesDeletedKeys, "test_a_deleted_page_can_be_set_again"),
        (KnowsOneScopeAtATime, "test_scopes_do_not_disturb_each_other"),
        (ClosesOnce, "test_it_opens_and_may_be_closed_twice"),
    )


class TestHistoriesOfTheBasics(StorageHistoryTests):
    faults = (
        AnswersInTheOrderOfTheDictionary,
        LosesOverwrites,
        OverwritesInPlace,
        TakesEmptyForAbsent,
        KeepsTheFirstOfABatch,
        WantsBytes,
        RaisesForAbsentDeletes,
        BuriesDeletedKeys,
    )
