"""The kit around the toy cache or a mutant of it: for tests of the kit itself, and for the tests of a mutant one by one."""

from collections.abc import Sequence
from typing import ClassVar, final

import pytest

from kvcache_conformance.host_model import HostModel
from kvcache_conformance.mutants import NOTICED
from kvcache_conformance.prefix_cache_machine import run_machine
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_conformance.toy_cache import ToyCache
from kvcache_core.contracts.cache import BasePrefixCache


@final
class ToyKit(BasePrefixCacheTests):
    """Every directed test is a method without arguments. `cache_type`: ToyCache or a mutant of it."""

    def __init__(self, cache_type: type[ToyCache]) -> None:
        self._cache_type = cache_type

    def make_cache(self, host: HostModel) -> BasePrefixCache:
        return self._cache_type(host.page_size, host.geometries, host.allocators)


class ToyMutantTests:
    """Subclass in a test module. A mutant is the toy cache with one method gone wrong, paired with the directed test of the kit
    that must notice it. `alone`: those that no host which keeps the protocol provokes, so that the machine does not either."""

    with_machine: ClassVar[Sequence[tuple[type[ToyCache], str]]]
    alone: ClassVar[Sequence[tuple[type[ToyCache], str]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "directed" in metafunc.fixturenames:
            metafunc.parametrize(("mutant", "directed"), [*self.with_machine, *self.alone])
        elif "mutant" in metafunc.fixturenames:
            metafunc.parametrize("mutant", [mutant for mutant, _ in self.with_machine])

    def test_a_planted_fault_fails_its_directed_test(self, mutant: type[ToyCache], directed: str) -> None:
        with pytest.raises(NOTICED):
            getattr(ToyKit(mutant), directed)()

    def test_a_planted_fault_stops_the_machine(self, mutant: type[ToyCache]) -> None:
        # It ends at the first finding. The rarest fault is found by two runs of three of 200 examples, so this never by none.
        with pytest.raises(NOTICED):
            run_machine(ToyKit(mutant).world, examples=4_000, steps=30, seed=0, shrink=False)

    def test_the_healthy_toy_passes_what_the_mutants_fail(self) -> None:
        for directed in sorted({directed for _, directed in [*self.with_machine, *self.alone]}):
            getattr(ToyKit(ToyCache), directed)()
