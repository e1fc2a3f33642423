"""What is lost of windows and states is counted, and of a window the part goes first that no prefix needs.

Every call goes through the kit, which holds the counters against what is in no tier any more.
"""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.component_scenarios import lengths, of_state, of_window, windows_and_states
from kvcache_conformance.geometries import FULL, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, finish, ids, in_host, load
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.contracts.results import Segment
from kvcache_radix import trimming
from kvcache_unified_hicache.host_tier import TreeVictims


@windows_and_states
def test_what_falls_with_its_start_is_counted_where_the_storage_refuses_it(stored, component):
    """S10: its device copy goes in the same call, so this was the last occasion, and not one of several."""
    storage = StorageScript()
    world = stored(TierSizes(PAGE, 16, 6, "insert", "evict"), storage, (FULL, component))
    in_host(world, ids(1, 2))
    world.script.fates.extend([False, True])
    started = load(world, ids(1, 2))
    world.settle()
    assert not claim(world, started)
    for prompt in (ids(3, 4), ids(5, 6)):
        compute(world, prompt)
        world.settle()
    assert not world.cache.counters.dropped
    storage.refusing = True
    compute(world, ids(7, 8))
    unit = PAGE if component is SWA else 1
    assert sum(world.cache.counters.dropped.values()) >= 2 * PAGE + unit
    world.settle()
    finish(world)


@pytest.mark.parametrize("tier", ["device", "host"])
@pytest.mark.parametrize("components", [(SWA,), (FULL, SWA)], ids=["S", "FS"])
def test_what_lies_behind_a_window_goes_first(tiered, components, tier):
    """A window of 6 tokens needs the last two of six pages: four can go, and the prompt is as usable as before. An engine offers
    a chunk before it leaves behind what the next one does not need."""
    prompt = ids(1, 2, 3, 4, 5, 6)
    world = tiered(TierSizes(PAGE, 512, 512, "insert"), components)
    pages = {spec.name: world.checked.alloc(spec.name, 6) for spec in components}
    tokens = np.asarray(prompt, np.int32)
    for name, indices in pages.items():
        for at, page in enumerate(indices.tolist()):
            world.checked.write(name, page, (), tokens[: (at + 1) * PAGE].tobytes())
    world.checked.insert(tokens, {name: [Segment(0, 24, indices)] for name, indices in pages.items()})
    world.verify()
    world.settle()
    if tier == "host":
        for spec in components:
            world.checked.evict(spec.name, 16)
    gone = 0
    while gone < 4:
        gone += world.checked.evict("swa", 1) if tier == "device" else world.evict_host("swa", 1)
        world.verify()
        assert lengths(world, prompt)[0 if tier == "device" else 1] == len(prompt)
    world.settle()
    finish(world)


FALLS = test_what_falls_with_its_start_is_counted_where_the_storage_refuses_it


class TestFaultsOfLosses(PlantedFaultTests):
    faults = (
        Fault(
            "S10: a window that falls with its start counts as put off",
            of_window(FALLS),
            Replacement(
                TreeVictims, "_take_all", "write_back(node, other, True)", "write_back(node, other, cell.device is None)"
            ),
        ),
        Fault(
            "S10: a state that falls with its start counts as put off",
            of_state(FALLS),
            Replacement(
                TreeVictims, "_take_all", "write_back(node, other, True)", "write_back(node, other, cell.device is None)"
            ),
        ),
        Fault(
            "what is needed of a window goes along with what is not",
            lambda tiered: test_what_lies_behind_a_window_goes_first(tiered, (FULL, SWA), "device"),
            Replacement(trimming, "trim", "if not geometry.prefix_closed:", "if False:"),
        ),
        Fault(
            "a window loses its end first",
            lambda tiered: test_what_lies_behind_a_window_goes_first(tiered, (FULL, SWA), "device"),
            Replacement(trimming, "trim", "if geometry.prefix_closed:", "if True:"),
        ),
    )
