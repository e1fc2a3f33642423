"""Planted faults in batches that a storage backend does not store whole, or does not answer whole, because they are large."""

from collections.abc import Collection

import pytest

from kvcache_conformance.storage_bench import StorageBench
from kvcache_conformance.storage_fault_tests import StorageFaultTests, kit_of
from kvcache_conformance.storage_toy import ToyStorage
from kvcache_core.contracts.storage import NotAllStoredError

ABOVE_THE_LIMIT = "test_a_value_above_the_limit_harms_nothing"
LARGE_BATCH = "test_batches_may_be_large"
MANY_MEGABYTES = "test_values_of_many_megabytes"


class Refuses(ToyStorage):
    """It says which pages have no room: well, except for what a subclass says."""

    def set(self, keys, values):
        super().set(keys, values)
        gone = [key for key, there in zip(keys, self.exists(keys), strict=True) if not there]
        if gone:
            raise NotAllStoredError(f"{len(gone)} of {len(keys)} pages have no room", self.named(keys, gone))

    def named(self, keys: Collection[str], gone: Collection[str]) -> Collection[str]:
        return gone


class NamesNone(Refuses):
    def named(self, keys, gone):
        return ()


class NamesTheWholeBatch(Refuses):
    def named(self, keys, gone):
        return keys


class NamesTheOthers(Refuses):
    def named(self, keys, gone):
        return {*keys} - {*gone} or gone


class NamesKeysAsItStoresThem(Refuses):
    def named(self, keys, gone):
        return [f"pages/{key}" for key in gone]


class RefusesLargeBatches(ToyStorage):
    def exists(self, keys):
        if len(keys) > 1000:
            raise ValueError(f"{len(keys)} keys in a request, 1000 are allowed")
        return super().exists(keys)


class AnswersTheFirstThousand(ToyStorage):
    def exists(self, keys):
        return [*super().exists(keys[:1000]), *[False] * (len(keys) - 1000)]


class ReadsAsManyAsTheCacheSends(ToyStorage):
    def get(self, keys):
        return [*super().get(keys[:1024]), *[None] * (len(keys) - 1024)]


class StoresTwoThousand(ToyStorage):
    def set(self, keys, values):
        super().set(keys[:2000], values[:2000])


class DeletesWholeThousands(ToyStorage):
    def delete(self, keys):
        super().delete(keys[: len(keys) // 1000 * 1000] or keys)


class DropsLargeBatches(ToyStorage):
    def set(self, keys, values):
        if sum(map(len, values)) <= 2**24:
            super().set(keys, values)


@pytest.mark.parametrize(
    ("fault", "test", "text"),
    [
        (NamesNone, ABOVE_THE_LIMIT, "`missing` is empty: it must name the pages that are not stored"),
        (NamesTheWholeBatch, ABOVE_THE_LIMIT, "`missing` names 2 pages that are there"),
        (NamesTheOthers, ABOVE_THE_LIMIT, "`missing` leaves out 1 of 1 pages that are not there"),
        (NamesKeysAsItStoresThem, ABOVE_THE_LIMIT, "which is no key of the batch"),
        (AnswersTheFirstThousand, LARGE_BATCH, "exists gave False for key 1000 of 2500, not True"),
        (DropsLargeBatches, MANY_MEGABYTES, "exists gave False for key 0 of 3, not True"),
    ],
)
def test_verdicts_are_plain(tmp_path, fault, test, text):
    kit = kit_of(fault)
    with StorageBench(kit, tmp_path) as bench, pytest.raises(AssertionError) as caught:
        getattr(kit, test)(bench)
    assert text in str(caught.value)


def test_a_refusal_that_is_true_is_none(tmp_path):
    kit = kit_of(Refuses)
    with StorageBench(kit, tmp_path) as bench:
        getattr(kit, ABOVE_THE_LIMIT)(bench)


class TestFaultsOfRefusals(StorageFaultTests):
    parts = ()
    faults = (
        (NamesNone, ABOVE_THE_LIMIT),
        (NamesTheWholeBatch, ABOVE_THE_LIMIT),
        (NamesTheOthers, ABOVE_THE_LIMIT),
        (NamesKeysAsItStoresThem, ABOVE_THE_LIMIT),
        (RefusesLargeBatches, LARGE_BATCH),
        (AnswersTheFirstThousand, LARGE_BATCH),
        (ReadsAsManyAsTheCacheSends, LARGE_BATCH),
        (StoresTwoThousand, LARGE_BATCH),
        (DeletesWholeThousands, LARGE_BATCH),
        (DropsLargeBatches, MANY_MEGABYTES),
    )
