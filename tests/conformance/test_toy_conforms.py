"""The kit passes on the simplest correct cache, for every set of components: what it asks can be done."""

import pytest

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.prefix_cache_machine import EVENTS, not_reached, run_machine
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_conformance.toy_cache import ToyCache


class TestToyFull(BasePrefixCacheTests):
    def make_cache(self, host):
        return ToyCache(host.page_size, host.geometries, host.allocators)


class TestToyWindow(TestToyFull):
    components = (SWA,)


class TestToyState(TestToyFull):
    components = (RECURRENT,)


class TestToyFullAndWindow(TestToyFull):
    components = (FULL, SWA)


class TestToyFullAndState(TestToyFull):
    components = (FULL, RECURRENT)


class TestToyWindowAndState(TestToyFull):
    components = (SWA, RECURRENT)


class TestToyAllComponents(TestToyFull):
    components = (FULL, SWA, RECURRENT)


@pytest.mark.parametrize("kit", [TestToyFull, TestToyAllComponents])
def test_the_machine_reaches_every_situation_and_finds_nothing(kit):
    events = run_machine(kit().world, examples=100, steps=30, seed=0)
    early = ["released early"] if len(kit.components) > 1 else []
    assert not not_reached(events, [*EVENTS, *early])


def test_the_same_arguments_give_the_same_run():
    runs = [run_machine(TestToyFull().world, examples=10, steps=10, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.slow
@pytest.mark.parametrize("kit", [TestToyFull, *TestToyFull.__subclasses__()])
def test_long_runs_of_the_machine(kit):
    run_machine(kit().world, examples=1_000, steps=50, seed=1)
