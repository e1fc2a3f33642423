"""Components and tiers as callers name them."""

from kvcache_core.contracts.cache import Tier
from kvcache_radix.store import NodeStore


def component_number(store: NodeStore, component: str, tier: Tier) -> int:
    """The number of `component` in `store`. Raises KeyError for an unknown component, or a tier that the cache has not."""
    c = store.components.get(component)
    if c is None:
        raise KeyError(f"this cache has the components {', '.join(store.components)}, not {component!r}")
    if tier not in ("device", "host") or (tier == "host" and not store.has_host):
        raise KeyError(f"this cache has no tier {tier!r}" + ("; set hicache to get L2" if tier == "host" else ""))
    return c
