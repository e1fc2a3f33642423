"""UnifiedRadixCache with storage under the state machine: requests to it end when, in which order and how hypothesis says.

With full attention, long enough to reach every situation; `test_unified_component_machines` has every set of components.
"""

from collections import Counter

import pytest

from kvcache_conformance.geometries import FULL
from kvcache_conformance.prefix_cache_machine import not_reached
from kvcache_conformance.stored_machine import run_stored_machine
from kvcache_conformance.stored_steps import STORED_EVENTS

SEEDS = 8
"""hypothesis draws differently in another version or order of tests. When a seed misses a situation, the next one is run too."""


def test_the_machine_finds_nothing_with_full_attention(stored):
    events = Counter[str]()
    for seed in range(SEEDS):
        events += run_stored_machine(lambda sizes, storage: stored(sizes, storage, (FULL,)), examples=250, steps=12, seed=seed)
        if not not_reached(events, STORED_EVENTS):
            break
    assert not not_reached(events, STORED_EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 18))
def test_long_runs_of_the_machine_with_storage(stored, seed):
    """10,000 examples."""
    events = run_stored_machine(lambda sizes, storage: stored(sizes, storage, (FULL,)), examples=1_000, steps=15, seed=seed)
    assert not not_reached(events, STORED_EVENTS, at_least=5)
