"""UnifiedRadixCache with storage under the state machine: requests to it end when, in which order and how hypothesis says."""

from collections import Counter

import pytest

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.prefix_cache_machine import not_reached
from kvcache_conformance.stored_machine import STORED_EVENTS, run_stored_machine

SEEDS = 8
"""hypothesis draws differently in another version or order of tests. When a seed misses a situation, the next one is run too."""


def test_the_machine_finds_nothing_with_full_attention(stored):
    events = Counter[str]()
    for seed in range(SEEDS):
        events += run_stored_machine(lambda sizes, storage: stored(sizes, storage, (FULL,)), examples=250, steps=12, seed=seed)
        if not not_reached(events, STORED_EVENTS):
            break
    assert not not_reached(events, STORED_EVENTS)


@pytest.mark.parametrize("components", [(FULL, SWA), (FULL, RECURRENT), (SWA, RECURRENT), (FULL, SWA, RECURRENT)])
def test_the_machine_finds_nothing_with_more_components(stored, components):
    """B7 by chance: the usable prefix is what every component has."""
    wanted = ["prefetches", "prefetch that delivered", "storage round trip", "persisted all", "left L2 for L3", "restarted"]
    events = Counter[str]()
    for seed in range(SEEDS):
        events += run_stored_machine(lambda sizes, storage: stored(sizes, storage, components), examples=30, steps=12, seed=seed)
        if not not_reached(events, wanted):
            break
    assert not not_reached(events, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 18))
def test_long_runs_of_the_machine_with_storage(stored, seed):
    """10,000 examples."""
    events = run_stored_machine(lambda sizes, storage: stored(sizes, storage, (FULL,)), examples=1_000, steps=15, seed=seed)
    assert not not_reached(events, STORED_EVENTS, at_least=5)
