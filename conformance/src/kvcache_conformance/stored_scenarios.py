"""Steps of directed scenarios on a cache with storage: prompts brought there by one process, found by the next.

Every call goes through `TieredWorld`, which compares claims, owners and contents after each. It plants no fault and judges
nothing that is special to a scenario.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL
from kvcache_conformance.page_content import page_content
from kvcache_conformance.scenario_steps import compute
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_world import Prefetch
from kvcache_conformance.tier_steps import TierSizes
from kvcache_conformance.tiered_world import TieredWorld
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.contracts.tokens import ExtraKey

Tokens = Sequence[int]

ROOM = TierSizes(PAGE, 16, 64, "insert", "evict")
"""A host that holds whatever a scenario has; a page is stored when it leaves it."""

INSERT = ROOM._replace(persist_on="insert")
"""The same, and a page is stored as soon as it is there."""


def in_storage(make: Callable[[StorageScript], TieredWorld], *prompts: Tokens) -> TieredWorld:
    """A world whose memory is empty, over a storage that has the prompts. `make`: one process on a storage."""
    storage = StorageScript()
    first = make(storage)
    for tokens in prompts:
        compute(first, tokens)
        first.settle()
    assert not first.persist(5.0).dropped
    first.cache.close()
    return make(storage)


def after_restart(
    stored: Callable[..., TieredWorld],
    *prompts: Tokens,
    sizes: TierSizes = ROOM,
    components: Sequence[ComponentSpec] = (FULL,),
    **changes: Any,
) -> TieredWorld:
    """`in_storage` for a fixture `stored(sizes, script, components, **changes)`."""
    return in_storage(lambda storage: stored(sizes, storage, components, **changes), *prompts)


def prefetch(world: TieredWorld, tokens: Tokens, extra_key: ExtraKey = ()) -> Prefetch:
    """A prefetch that must be accepted; nothing has come yet."""
    started = world.prefetch(list(tokens), extra_key)
    assert isinstance(started, Prefetch), started
    world.verify()
    return started


def withdraw(world: TieredWorld, started: Prefetch) -> None:
    """Whoever asked for it wants it no more."""
    assert world.stored is not None
    world.stored.cancel(started)


def host_len(world: TieredWorld, tokens: Tokens, extra_key: ExtraKey = ()) -> int:
    """How much of a prompt memory can serve."""
    return world.checked.match(np.asarray(tokens, np.int32), extra_key).result.host_len


def payload(component: str, tokens: Tokens, extra_key: ExtraKey = ()) -> bytes:
    """The content of the page, or state, of `component` that ends with `tokens`."""
    return page_content(extra_key, component, np.asarray(tokens, np.int32).tobytes()).tobytes()


def script_of(world: TieredWorld) -> StorageScript:
    """The dials of the storage, and what happened there."""
    assert world.stored is not None
    return world.stored.script


def is_stored(world: TieredWorld, component: str, tokens: Tokens, extra_key: ExtraKey = ()) -> bool:
    """Whether the storage ever took that page."""
    assert world.stored is not None
    return payload(component, tokens, extra_key) in world.stored.script.ever_stored


def lose(world: TieredWorld, component: str, *prefixes: Tokens) -> None:
    """The storage has no page of `component` any more that ends with one of these."""
    assert world.stored is not None
    gone = world.stored.lose(component, (), [np.asarray(tokens, np.int32).tobytes() for tokens in prefixes])
    assert gone == len(prefixes), "the storage never had them"
