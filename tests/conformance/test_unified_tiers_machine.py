"""UnifiedRadixCache with a host tier under the state machine: copies end when, in which order and how hypothesis says.

With full attention, long enough to reach every situation; `test_unified_component_machines` has every set of components.
"""

from collections import Counter

import pytest

from kvcache_conformance.geometries import FULL
from kvcache_conformance.prefix_cache_machine import not_reached
from kvcache_conformance.tier_machine import run_tier_machine
from kvcache_conformance.tier_steps import TIER_EVENTS

SEEDS = 8
"""hypothesis draws differently in another version or order of tests. When a seed misses a situation, the next one is run too."""

BESIDE = ("hit", "short of pages", "preempted", "race with duplicates", "branch inside a lock", "stale match refused")


def test_the_machine_finds_nothing_with_full_attention(tiered):
    events = Counter[str]()
    for seed in range(SEEDS):
        events += run_tier_machine(lambda sizes: tiered(sizes, (FULL,)), examples=250, steps=12, seed=seed)
        if seed and not not_reached(events, [*BESIDE, *TIER_EVENTS]):
            break
    assert not not_reached(events, [*BESIDE, *TIER_EVENTS])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
def test_long_runs_of_the_machine(tiered, seed):
    """20,000 examples."""
    events = run_tier_machine(lambda sizes: tiered(sizes, (FULL,)), examples=1_000, steps=15, seed=seed)
    assert not not_reached(events, [*BESIDE, *TIER_EVENTS], at_least=5)
