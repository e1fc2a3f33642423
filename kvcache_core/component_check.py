"""Whether a component keeps its contract where a look can tell, asked once when a cache is built.

A tree skips lengths, prunes and evicts on the strength of `first_needed`: one that breaks its rules gives pages away that a
request still reads. The kit's tests find more; this is for plugins that did not run them. It knows no tree and no cache.
"""

import functools
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from kvcache_core.contracts.component import ComponentTiers, TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.deps import ComponentFactory
from kvcache_core.errors import KVCacheError, PluginError
from kvcache_core.registry.loading import describe_exception

LENGTHS: Final = tuple(
    sorted({*range(130), *(near for k in range(7, 21) for near in ((1 << k) - 1, 1 << k, (1 << k) + 1)), 1000, 10**5})
)
"""Small ones, and both sides of every power of two: where windows and chunks begin and end."""


def checked_component(factory: ComponentFactory, source: object) -> ComponentFactory:
    """`factory`, whose components are looked at before anyone gets them. It raises PluginError, naming `source`."""

    @functools.wraps(factory)
    def make(options: Any, spec: ComponentSpec, tiers: ComponentTiers) -> TreeComponent:
        try:
            component = factory(options, spec, tiers)
            faults = list(faults_of(component, spec))
        except KVCacheError:
            raise
        except Exception as error:
            raise PluginError(f"component '{spec.name}' of {source} cannot be made: {describe_exception(error)}") from error
        if faults:
            raise PluginError(f"component '{spec.name}' of {source} breaks its contract: {faults[0]}")
        return component

    return make


def faults_of(component: TreeComponent, spec: ComponentSpec) -> Iterator[str]:
    """What is wrong with it, in the order in which it was looked at; none means that nothing was found."""
    if component.name != spec.name:
        yield f"it is called {component.name!r}"
    if component.prefix_closed and component.at_node_end:
        yield "prefix_closed and at_node_end exclude each other"
    first = {length: component.first_needed(length) for length in LENGTHS}
    for length, needed in first.items():
        if type(needed) is not int or not 0 <= needed <= length:
            yield f"first_needed({length}) is {needed!r}, and must be a whole number from 0 to {length}"
            return
    for shorter, longer in pairwise(LENGTHS):
        if first[shorter] > first[longer]:
            yield f"first_needed decreases from {first[shorter]} at {shorter} to {first[longer]} at {longer}"
    nothing = [length for length in LENGTHS[1:] if first[length] == length]
    if nothing and len(nothing) < len(LENGTHS) - 1:
        some = next(length for length in LENGTHS[1:] if first[length] < length)
        yield f"first_needed asks for data at length {some} and for none at {nothing[0]}; it must ask at every length or at none"
    if component.prefix_closed and any(first.values()):
        yield "prefix_closed says that every prefix needs all of its data, and first_needed that it does not"
    if component.at_node_end and any(first[length] != length - 1 for length in LENGTHS[1:]):
        yield "at_node_end says that one unit stands for the last position, and first_needed does not ask for that position"
