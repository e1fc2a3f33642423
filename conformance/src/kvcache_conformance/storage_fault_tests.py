"""Tests of the storage kit itself: each fault that is planted in a backend fails the directed test that is named for it, each
directed test has a fault, and histories come across some of them, too. The faults are the subclasses' matter.
"""

from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from kvcache_conformance.storage_bench import StorageBench
from kvcache_conformance.storage_machine import run_storage_machine
from kvcache_conformance.storage_tests import PARTS
from kvcache_conformance.storage_toy import ToyStorage, ToyStorageKit


def kit_of(fault: type[ToyStorage]) -> ToyStorageKit:
    """The kit on a faulty toy."""
    return type(f"{fault.__name__}Kit", (ToyStorageKit,), {"storage": fault})()


class StorageFaultTests(ABC):
    """`faults`: each with the directed test that must notice it. `parts`: of the kit, by name; all of their directed tests need a
    fault, but for those `elsewhere` that this way of planting cannot reach."""

    faults: ClassVar[Sequence[tuple[type[ToyStorage], str]]]
    parts: ClassVar[Sequence[str]]
    elsewhere: ClassVar[frozenset[str]] = frozenset()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "fault" in metafunc.fixturenames:
            ids = [f"{fault.__name__}-{test}" for fault, test in self.faults]
            metafunc.parametrize(("fault", "test"), self.faults, ids=ids)

    def test_a_fault_fails_its_test(self, tmp_path: Path, fault: type[ToyStorage], test: str) -> None:
        good, kit = ToyStorageKit(), kit_of(fault)
        with StorageBench(good, tmp_path / "good") as bench:
            getattr(good, test)(bench)
        with (
            pytest.raises(Exception) as caught,  # noqa: PT011 - a backend may raise anything
            StorageBench(kit, tmp_path / "faulty") as bench,
        ):
            getattr(kit, test)(bench)
        assert str(caught.value)

    def test_every_directed_test_notices_some_fault(self) -> None:
        directed = {name for part in self.parts for name in vars(PARTS[part]) if name.startswith("test_")}
        # Not the other way round: some faults show in tests of another part, which has enough of its own.
        unnoticed = sorted(directed - self.elsewhere - {test for _, test in self.faults})
        assert not unnoticed, f"no fault is planted that {unnoticed[0]} has to notice"
        assert self.elsewhere <= directed


class StorageHistoryTests(ABC):
    """`faults`: those that show only after a history, or in many ways: random histories must come across them, too."""

    faults: ClassVar[Sequence[type[ToyStorage]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.parametrize("fault", self.faults, ids=[fault.__name__ for fault in self.faults])

    def test_a_fault_stops_the_machine(self, tmp_path: Path, fault: type[ToyStorage]) -> None:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - a backend may raise anything
            # It ends at the first finding: the number only keeps chance out.
            run_storage_machine(kit_of(fault), tmp_path, examples=300, steps=30, seed=0, shrink=False)
        assert str(caught.value)
