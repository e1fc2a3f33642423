"""Planted faults in what a storage backend may do besides: listing its pages, keeping a limit, giving raw access."""

import time

import pytest

from kvcache_conformance.storage_fault_tests import StorageFaultTests
from kvcache_conformance.storage_kit import CAPABILITIES
from kvcache_conformance.storage_tests import PARTS
from kvcache_conformance.storage_toy import ToyStorage, ToyStorageKit
from kvcache_core.contracts.storage import StoredPage

OTHERS = ("basic", "threads", "opening", "persistent", "shared", "machine", "buffers")
"""Parts of the kit whose faults are in files of their own."""

ENDS = time.time()


class ScansItsOwnScope(ToyStorage):
    def scan(self):
        return (page for page in super().scan() if page.model_id == self.scope.model_id)


class ScansCleanedNames(ToyStorage):
    def scan(self):
        return (page._replace(model_id=page.model_id.replace("/", "_")) for page in super().scan())


class ScansShortNames(ToyStorage):
    def scan(self):
        return (page._replace(model_id=page.model_id[:100]) for page in super().scan())


class ScansNamesOfFolders(ToyStorage):
    def scan(self):
        return (page for page in super().scan() if page.model_id.strip("."))


class ScansWithoutNul(ToyStorage):
    def scan(self):
        return (page._replace(model_id=page.model_id.split("\0")[0]) for page in super().scan())


class ScansInAscii(ToyStorage):
    def scan(self):
        return (page._replace(model_id=page.model_id.encode("ascii", "replace").decode()) for page in super().scan())


class ScansColonsAsSeparators(ToyStorage):
    def scan(self):
        return (page._replace(model_id=page.model_id.partition(":")[0]) for page in super().scan())


class ScansAllAsUsedNow(ToyStorage):
    def scan(self):
        return (page._replace(used=time.time()) for page in super().scan())


class ScansTheTimeThatIsLeft(ToyStorage):
    """As one that keeps when a page ends: what was used last ends last, counted from the other side."""

    def scan(self):
        return (page._replace(used=2 * ENDS - page.used) for page in super().scan())


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


class EvictsInTheOrderOfWriting(ToyStorage):
    def take(self, place):
        return self.disk.pages.get(place)


class EvictsWhatWasRead(ToyStorage):
    """A page that was read has had its time."""

    def take(self, place):
        value = self.disk.pages.get(place)
        if value is not None:
            self.disk.pages = {place: value} | self.disk.pages
        return value


class ReadsIntoBuffersWithoutUse(ToyStorage):
    def get_into(self, keys, buffers):
        found = [self.disk.pages.get(self.place(key)) for key in keys]
        for value, (buffer,) in zip(found, buffers, strict=True):
            buffer[:] = value or bytes(len(buffer))
        return [None if value is None else len(value) for value in found]


class LimitsEachScope(ToyStorage):
    def put(self, place, value):
        pages, mine = self.disk.pages, {at: old for at, old in self.disk.pages.items() if at[:2] == place[:2]}
        self.disk.pages = mine
        super().put(place, value)
        self.disk.pages = {at: old for at, old in pages.items() if at not in mine} | mine


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


def test_unknown_capabilities_are_named():
    class Misspelt(ToyStorageKit):
        capabilities = frozenset(CAPABILITIES) | {"persistant"}

    with pytest.raises(
        AssertionError, match="there is no capability 'persistant'; the capabilities are persistent, shared, scan"
    ):
        Misspelt().test_what_it_declares_is_known()


class TestFaultsOfOptionalParts(StorageFaultTests):
    parts = tuple(part for part in PARTS if part not in OTHERS)
    faults = (
        (ScansItsOwnScope, "test_scan_names_every_page_of_every_scope"),
        (ScansCleanedNames, "test_scan_names_every_page_of_every_scope"),
        (ScansShortNames, "test_scan_gives_model_ids_as_they_were_given"),
        (ScansNamesOfFolders, "test_scan_gives_model_ids_as_they_were_given"),
        (ScansWithoutNul, "test_scan_gives_model_ids_as_they_were_given"),
        (ScansInAscii, "test_scan_gives_model_ids_as_they_were_given"),
        (ScansColonsAsSeparators, "test_scan_gives_model_ids_as_they_were_given"),
        (ScansAllAsUsedNow, "test_scan_says_when_a_page_was_used"),
        (ScansTheTimeThatIsLeft, "test_scan_says_when_a_page_was_used"),
        (ScansInMilliseconds, "test_scan_says_when_a_page_was_used"),
        (ScansWhatWasDeleted, "test_scan_follows_changes"),
        (ScansWhileItIsChanged, "test_what_scan_names_can_be_deleted_meanwhile"),
        (HasNoLimit, "test_three_times_the_limit_leaves_the_newest"),
        (CountsOneBatchLate, "test_a_batch_above_the_limit_leaves_it_bounded"),
        (EvictsTheNewest, "test_three_times_the_limit_leaves_the_newest"),
        (RefreshesWhenAsked, "test_three_times_the_limit_leaves_the_newest"),
        (EvictsInTheOrderOfWriting, "test_what_is_read_is_used"),
        (EvictsWhatWasRead, "test_what_is_read_is_used"),
        (ReadsIntoBuffersWithoutUse, "test_what_is_read_is_used"),
        (LimitsEachScope, "test_the_limit_is_of_all_scopes_together"),
        (CountsOverwrittenPages, "test_overwriting_and_deleting_take_no_room"),
        (EvictsAllForAHugeValue, "test_a_value_above_the_limit_harms_nothing"),
        (KnowsOnlyWhatItWrote, "test_a_lower_limit_holds_after_opening_again"),
        (MakesRoomWhenOpened, "test_one_who_only_looks_makes_no_room"),
        (CompressesInside, "test_what_is_set_is_what_is_stored"),
        (TrustsItsIndex, "test_what_is_stored_is_what_is_got"),
        (RaisesForDamagedPages, "test_a_damaged_page_harms_no_other_and_can_be_set_again"),
        (TrustsItsIndex, "test_a_page_that_vanished_is_absent"),
    )
