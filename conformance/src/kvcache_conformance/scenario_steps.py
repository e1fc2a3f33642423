"""Steps of directed scenarios on a cache with a host tier: whole prompts computed, brought into the host, loaded and claimed.

Every call goes through `TieredWorld`, which compares claims, owners and contents after each. The page size is `PAGE`. It plants
no fault and judges nothing that is special to a scenario.
"""

from collections.abc import Sequence

import numpy as np

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.claims import Match
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.tiered_world import Load, TieredWorld


def ids(*pages: int) -> list[int]:
    """One page of tokens for each number."""
    return [100 * page + i for page in pages for i in range(PAGE)]


def compute(world: TieredWorld, tokens: Sequence[int]) -> None:
    """One request, in one chunk, without a load."""
    request = RequestModel(world.checked, list(tokens))
    assert request.admit()
    assert request.compute(len(tokens))
    request.finish()
    world.verify()


def find(world: TieredWorld, tokens: Sequence[int]) -> Match:
    """A checked match."""
    return world.checked.match(np.asarray(tokens, np.int32))


def evict(world: TieredWorld, component: str = "full") -> None:
    """All of a component that no lock holds leaves the device."""
    world.checked.evict(component, world.host.allocators[component].total)
    world.verify()


def in_host(world: TieredWorld, *prompts: Sequence[int]) -> None:
    """The prompts are in host memory alone."""
    for tokens in prompts:
        compute(world, tokens)
    world.settle()
    for name in world.host.geometries:
        evict(world, name)
    world.settle()
    for tokens in prompts:
        assert find(world, tokens).result[1:] == (0, len(tokens), len(tokens))


def load(world: TieredWorld, tokens: Sequence[int]) -> Load:
    """A load that must be accepted."""
    started = world.load(find(world, tokens))
    assert isinstance(started, Load), started
    world.verify()
    return started


def claim(world: TieredWorld, started: Load) -> bool:
    """A load is done: whether it brought everything. Its lock is released."""
    held = world.claim(started)
    if held is not None:
        world.checked.unlock(held)
    world.verify()
    return held is not None


def finish(world: TieredWorld) -> None:
    """Nothing is left behind in either tier."""
    world.verify()
    world.drain()
