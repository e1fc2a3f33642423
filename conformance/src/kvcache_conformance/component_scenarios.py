"""Scenarios in which one component of several goes, fails or comes back: the sets of components, their room, and shared steps.

The steps for any component are in `scenario_steps` and `stored_scenarios`. As there, the page size is `PAGE`, every call goes
through `TieredWorld`, no fault is planted, and nothing is judged that is special to a scenario.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import claim, find, ids, in_host, load
from kvcache_conformance.stored_scenarios import prefetch
from kvcache_conformance.stored_world import Prefetch
from kvcache_conformance.tier_steps import TierSizes
from kvcache_conformance.tiered_world import TieredWorld
from kvcache_core.contracts.cache import Tier
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.contracts.results import SizeInfo
from kvcache_core.contracts.tokens import ExtraKey

SETS: Mapping[str, tuple[ComponentSpec, ...]] = {
    "S": (SWA,),
    "R": (RECURRENT,),
    "FS": (FULL, SWA),
    "FR": (FULL, RECURRENT),
    "SR": (SWA, RECURRENT),
    "FSR": (FULL, SWA, RECURRENT),
}
"""By the initials of their components: every set that is more than full attention."""
ALL = SETS["FSR"]

every_set = pytest.mark.parametrize("components", SETS.values(), ids=SETS)
"""Of a test that takes `components`."""
windows_and_states = pytest.mark.parametrize("component", [SWA, RECURRENT], ids=["window", "state"])
"""Of a test that takes `component`."""

ROOM = TierSizes(PAGE, 16, 64, "insert")
"""Two tiers that hold whatever a scenario has; a page is copied to the host when it is inserted."""
STORED_ROOM = ROOM._replace(persist_on="evict", interval=PAGE)
"""The same over a storage, to which a page goes when it leaves the host, and with a state at every page."""

PROMPT = ids(1, 2, 3, 4, 5, 6)
"""Longer than the window, so that most of its pages have left it."""


def given(test: Callable[..., None], *values: object) -> Callable[..., None]:
    """A parametrised test with `values` for its last parameters. Those before are its fixtures and stay open."""
    names = list(inspect.signature(test).parameters)[-len(values) :]
    return partial(test, **dict(zip(names, values, strict=True)))


def of_window(test: Callable[..., None], *more: object) -> Callable[..., None]:
    """One of `windows_and_states`, for windows alone."""
    return given(test, SWA, *more)


def of_state(test: Callable[..., None], *more: object) -> Callable[..., None]:
    """One of `windows_and_states`, for states alone."""
    return given(test, RECURRENT, *more)


def of_set(name: str, test: Callable[..., None], *more: object) -> Callable[..., None]:
    """One of `every_set`, for the set of that name alone."""
    return given(test, SETS[name], *more)


def lengths(world: TieredWorld, tokens: Sequence[int]) -> tuple[int, int, int]:
    """In tokens: usable from the device, from both tiers, and known."""
    result = find(world, tokens).result
    return result.device_len, result.host_len, result.matched_len


def sizes_of(world: TieredWorld) -> dict[tuple[str, Tier], SizeInfo]:
    """Every component's account, in both tiers."""
    world.verify()
    tiers: tuple[Tier, Tier] = ("device", "host")
    return {(name, tier): world.cache.size(name, tier) for name in world.host.geometries for tier in tiers}


def host_units(world: TieredWorld) -> dict[str, int]:
    """Pages, or states, that the host has of each component."""
    return {name: len(pages) for name, pages in world.ledger.claims.resident.items()}


def in_chunks(world: TieredWorld, tokens: Sequence[int], n: int = PAGE) -> None:
    """One request, computed `n` tokens at a time, that offers every chunk."""
    request = RequestModel(world.checked, list(tokens))
    assert request.admit()
    while request.to_compute:
        assert request.compute(n)
        request.chunk_done()
    request.finish()
    world.verify()


def on_the_host_alone(world: TieredWorld, tokens: Sequence[int]) -> None:
    """Of a prompt, full attention is in the host alone, and the other component on the device too: of a load, one copy failed."""
    in_host(world, tokens)
    world.script.fates.extend([False, True])
    started = load(world, tokens)
    world.settle()
    assert not claim(world, started)
    full, other = (len(world.checked.model.resident(name)) for name in world.host.geometries)
    assert other and not full


def fetch(world: TieredWorld, tokens: Sequence[int], extra_key: ExtraKey = ()) -> Prefetch:
    """A prefetch and its end."""
    started = prefetch(world, tokens, extra_key)
    world.settle()
    world.verify()
    return started
