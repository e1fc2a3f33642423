"""Planted faults in a storage backend: the kit is worth something only if each fails the test that is named here."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from kvcache_conformance.storage_bench import SCOPE, StorageBench
from kvcache_conformance.storage_kit import CAPABILITIES
from kvcache_conformance.storage_machine import run_storage_machine
from kvcache_conformance.storage_toy import ToyRaw, ToyStorage, ToyStorageKit
from kvcache_core.contracts.storage import StoredPage

# answers


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


class ReadsInto(ToyStorage):
    """Well, except for what a subclass says."""

    def get_into(self, keys, buffers):
        return [self.fill(value, places) for value, places in zip(self.get(keys), buffers, strict=True)]

    def fill(self, value, places):
        if value is None or len(value) != sum(map(len, places)):
            return None if value is None else len(value)
        at = 0
        for place in places:
            place[:] = value[at : at + len(place)]
            at += len(place)
        return at


class FillsTheFirstBufferAlone(ReadsInto):
    def fill(self, value, places):
        return super().fill(value, places[:1])


class SaysWhatItWrote(ReadsInto):
    def fill(self, value, places):
        room = sum(map(len, places))
        return None if value is None else super().fill(value[:room].ljust(room, b"\0"), places)


class WantsLists(ToyStorage):
    def delete(self, keys: Any):
        super().delete([].__add__(keys))


# writing


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


# deleting and closing


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


# threads


class WorksInOneThread(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        self.owner = threading.get_ident()

    def set(self, keys, values):
        if threading.get_ident() != self.owner:
            raise RuntimeError("objects created in a thread can only be used in that same thread")
        super().set(keys, values)


class LosesUpdatesOfThreads(ToyStorage):
    """Reads, changes and writes the whole: two threads that meet in between lose one's change."""

    def __init__(self, *args):
        super().__init__(*args)
        self.meeting = threading.Barrier(2)

    def set(self, keys, values):
        changed = dict(self.disk.pages) | {self.place(key): bytes(value) for key, value in zip(keys, values, strict=True)}
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.02)
        self.disk.pages = changed


class WritesByHalves(ToyStorage):
    """A reader may come between the halves."""

    def __init__(self, *args):
        super().__init__(*args)
        self.reader_has_come = threading.Event()

    def get(self, keys):
        found = super().get(keys)
        self.reader_has_come.set()
        return found

    def set(self, keys, values):
        halves = [bytes(value)[: len(value) // 2] for value in values]
        super().set(keys, halves)
        self.reader_has_come.clear()
        self.reader_has_come.wait(0.02)
        super().set(keys, values)


class DropsBeforeOverwriting(ToyStorage):
    """Two writers at once: one deletes what the other has just written."""

    def set(self, keys, values):
        super().set(keys, values)
        if threading.current_thread() is not threading.main_thread():
            self.delete(keys)


# optional parts


class Forgets(ToyStorage):
    def close(self):
        self.disk.pages.clear()


class NeverWritesOverOldPages(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        self.old = frozenset(self.disk.pages)

    def put(self, place, value):
        if place not in self.old:
            super().put(place, value)


class RemembersWhatItRead(ToyStorage):
    """A cache of its own, which other openers' writes do not reach."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read: dict[str, bytes | None] = {}

    def get(self, keys):
        for key, value in zip(keys, super().get(keys), strict=True):
            self.read.setdefault(key, value)
        return [self.read[key] for key in keys]

    def set(self, keys, values):
        super().set(keys, values)
        self.read |= {key: bytes(value) for key, value in zip(keys, values, strict=True)}

    def delete(self, keys):
        super().delete(keys)
        self.read |= dict.fromkeys(keys)


class ScansItsOwnScope(ToyStorage):
    def scan(self):
        return (page for page in super().scan() if page.model_id == self.scope.model_id)


class ScansCleanedNames(ToyStorage):
    def scan(self):
        return (page._replace(model_id=page.model_id.replace("/", "_")) for page in super().scan())


class ScansInMilliseconds(ToyStorage):
    def scan(self):
        return (page._replace(used=page.used * 1000) for page in super().scan())


class ScansWhatWasDeleted(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        self.ever: dict[str, StoredPage] = {}

    def scan(self):
        self.ever |= {page.key: page for page in super().scan()}
        return iter(self.ever.values())

    def delete(self, keys):
        self.ever |= {page.key: page for page in super().scan()}
        super().delete(keys)


class ScansWhileItIsChanged(ToyStorage):
    def scan(self):
        for (model_id, page_size, key), value in self.disk.pages.items():
            yield StoredPage(key, model_id, page_size, len(value), 1e9)


class HasNoLimit(ToyStorage):
    def __init__(self, disk, scope, max_bytes=None):
        super().__init__(disk, scope)


class CountsOneBatchLate(ToyStorage):
    def set(self, keys, values):
        limit, self.max_bytes = self.max_bytes, None
        super().set(keys, values)
        self.max_bytes = limit


class EvictsTheNewest(ToyStorage):
    def put(self, place, value):
        if self.max_bytes is None or sum(map(len, self.disk.pages.values())) + len(value) <= self.max_bytes:
            super().put(place, value)


class RefreshesWhenAsked(ToyStorage):
    def exists(self, keys):
        for key in keys:
            if self.place(key) in self.disk.pages:
                self.disk.pages[self.place(key)] = self.disk.pages.pop(self.place(key))
        return super().exists(keys)


class CountsOverwrittenPages(ToyStorage):
    def __init__(self, *args):
        super().__init__(*args)
        self.written = 0

    def put(self, place, value):
        self.written += len(value)
        super().put(place, value)
        while self.max_bytes and self.written > self.max_bytes and self.disk.pages:
            self.written -= len(self.disk.pages.pop(next(iter(self.disk.pages))))


class EvictsAllForAHugeValue(ToyStorage):
    def put(self, place, value):
        if self.max_bytes is not None and len(value) > self.max_bytes:
            self.max_bytes = 0
        super().put(place, value)


class KnowsOnlyWhatItWrote(ToyStorage):
    """What was there before counts nothing."""

    def __init__(self, *args):
        super().__init__(*args)
        self.before = len(self.disk.pages) and sum(map(len, self.disk.pages.values()))

    def put(self, place, value):
        limit = self.max_bytes
        self.max_bytes = None if limit is None else limit + self.before
        super().put(place, value)
        self.max_bytes = limit


class MakesRoomWhenOpened(ToyStorage):
    """Whoever opens it."""

    def __init__(self, *args):
        super().__init__(*args)
        while self.max_bytes is not None and sum(map(len, self.disk.pages.values())) > self.max_bytes:
            del self.disk.pages[next(iter(self.disk.pages))]


class GivesNothingToOneWhoLooks(ToyStorage):
    """It takes the field for a part of the name."""

    def place(self, key):
        return self.scope.model_id, -self.scope.page_size if self.scope.read_only else self.scope.page_size, key


class CompressesInside(ToyStorage):
    def put(self, place, value):
        super().put(place, b"z" + value)

    def get(self, keys):
        return [None if value is None else value[1:] for value in super().get(keys)]


class RaisesForDamagedPages(ToyStorage):
    sizes: dict[str, int] = {}  # noqa: RUF012 - of one test

    def set(self, keys, values):
        super().set(keys, values)
        self.sizes |= {key: len(value) for key, value in zip(keys, values, strict=True)}

    def get(self, keys):
        found = super().get(keys)
        for key, value in zip(keys, found, strict=True):
            if value is not None and len(value) != self.sizes.get(key, len(value)):
                raise ValueError("damaged")
        return found


class TrustsItsIndex(ToyStorage):
    """It keeps a list of what it has, and never looks again."""

    def __init__(self, *args):
        super().__init__(*args)
        self.index = {key for _, _, key in self.disk.pages}

    def set(self, keys, values):
        super().set(keys, values)
        self.index |= set(keys)

    def delete(self, keys):
        super().delete(keys)
        self.index -= set(keys)

    def exists(self, keys):
        return [key in self.index for key in keys]


FAULTS: Sequence[tuple[type[ToyStorage], str]] = (
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
    (FillsTheFirstBufferAlone, "test_reading_into_buffers_gives_what_get_gives"),
    (SaysWhatItWrote, "test_reading_into_buffers_gives_what_get_gives"),
    (WantsLists, "test_batches_may_be_any_sequence_and_are_left_alone"),
    (LosesOverwrites, "test_the_last_writer_wins"),
    (OverwritesInPlace, "test_the_last_writer_wins"),
    (Truncates, "test_values_of_any_size"),
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
    (WorksInOneThread, "test_it_works_in_a_thread_that_did_not_open_it"),
    (LosesUpdatesOfThreads, "test_threads_with_keys_of_their_own_lose_nothing"),
    (WritesByHalves, "test_readers_see_a_whole_value_or_none"),
    (DropsBeforeOverwriting, "test_readers_see_a_whole_value_or_none"),
    (Forgets, "test_pages_are_there_after_opening_again"),
    (NeverWritesOverOldPages, "test_changes_go_on_after_opening_again"),
    (Forgets, "test_an_opener_goes_on_when_another_is_closed"),
    (RemembersWhatItRead, "test_openers_see_each_others_pages"),
    (DropsBeforeOverwriting, "test_openers_that_write_the_same_keys_at_once"),
    (ScansItsOwnScope, "test_scan_names_every_page_of_every_scope"),
    (ScansCleanedNames, "test_scan_names_every_page_of_every_scope"),
    (ScansInMilliseconds, "test_scan_names_every_page_of_every_scope"),
    (ScansWhatWasDeleted, "test_scan_follows_changes"),
    (ScansWhileItIsChanged, "test_what_scan_names_can_be_deleted_meanwhile"),
    (HasNoLimit, "test_three_times_the_limit_leaves_the_newest"),
    (CountsOneBatchLate, "test_a_batch_above_the_limit_leaves_it_bounded"),
    (EvictsTheNewest, "test_three_times_the_limit_leaves_the_newest"),
    (RefreshesWhenAsked, "test_three_times_the_limit_leaves_the_newest"),
    (CountsOverwrittenPages, "test_overwriting_and_deleting_take_no_room"),
    (EvictsAllForAHugeValue, "test_a_value_above_the_limit_harms_nothing"),
    (KnowsOnlyWhatItWrote, "test_a_lower_limit_holds_after_opening_again"),
    (MakesRoomWhenOpened, "test_one_who_only_looks_makes_no_room"),
    (GivesNothingToOneWhoLooks, "test_one_who_only_looks_finds_what_is_there"),
    (CompressesInside, "test_what_is_set_is_what_is_stored"),
    (TrustsItsIndex, "test_what_is_stored_is_what_is_got"),
    (RaisesForDamagedPages, "test_a_damaged_page_harms_no_other_and_can_be_set_again"),
    (TrustsItsIndex, "test_a_page_that_vanished_is_absent"),
)
"""Faults, and the directed test that notices each."""

FOR_THE_MACHINE = (
    AnswersInTheOrderOfTheDictionary,
    LosesOverwrites,
    OverwritesInPlace,
    TakesEmptyForAbsent,
    KeepsTheFirstOfABatch,
    WantsBytes,
    RaisesForAbsentDeletes,
    BuriesDeletedKeys,
    WorksInOneThread,
    Forgets,
    RemembersWhatItRead,
)
"""Faults that show only after a history, or in many ways: random histories must come across them, too."""


def kit_of(fault: type[ToyStorage]) -> ToyStorageKit:
    return type(f"{fault.__name__}Kit", (ToyStorageKit,), {"storage": fault})()


@pytest.mark.parametrize(("fault", "test"), FAULTS, ids=lambda part: part if isinstance(part, str) else part.__name__)
def test_a_fault_fails_its_test(tmp_path, fault, test):
    good, kit = ToyStorageKit(), kit_of(fault)
    with StorageBench(good, tmp_path / "good") as bench:
        getattr(good, test)(bench)
    with pytest.raises(Exception) as caught, StorageBench(kit, tmp_path / "faulty") as bench:  # noqa: PT011 - a backend may raise anything
        getattr(kit, test)(bench)
    assert str(caught.value)


def test_every_directed_test_notices_some_fault():
    directed = {name for name in dir(ToyStorageKit) if name.startswith("test_")}
    elsewhere = {
        "test_the_machine_finds_nothing",
        "test_what_it_declares_is_known",
        "test_a_model_id_never_leads_out_of_the_place",
        "test_pages_of_another_process_are_there",
        "test_processes_that_write_the_same_keys_at_once",
    }
    assert directed - elsewhere - {test for _, test in FAULTS} == set()


@pytest.mark.parametrize("fault", FOR_THE_MACHINE)
def test_a_fault_stops_the_machine(tmp_path, fault):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - a backend may raise anything
        run_storage_machine(kit_of(fault), tmp_path, examples=30, steps=30, seed=0, shrink=False)
    assert str(caught.value)


def test_leaving_the_place_is_noticed(tmp_path):
    kit = LeavesItsPlace()
    with StorageBench(kit, tmp_path) as bench, pytest.raises(AssertionError, match="'up' was written beside the folder"):
        kit.test_a_model_id_never_leads_out_of_the_place(bench)


def test_unknown_capabilities_are_named():
    class Misspelt(ToyStorageKit):
        capabilities = frozenset(CAPABILITIES) | {"persistant"}

    with pytest.raises(
        AssertionError, match="there is no capability 'persistant'; the capabilities are persistent, shared, scan"
    ):
        Misspelt().test_what_it_declares_is_known()


def test_raw_access_is_past_the_backend(tmp_path):
    kit = kit_of(ClaimsWhatItLost)
    with StorageBench(kit, tmp_path) as bench:
        raw = kit.raw(bench.place, SCOPE)
        assert isinstance(raw, ToyRaw)
        assert raw.read("00" * 32) is None
