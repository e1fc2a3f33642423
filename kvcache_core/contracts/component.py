"""A TreeComponent is the geometry of one kind of attention. It never looks into a tree.

`first_needed` and two constants decide what is matched, locked, evicted, loaded and fetched; the three hooks of the RFC are the
same one-line delegation for every component and therefore live here, once.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, final

from kvcache_core.contracts.results import Indices


class ComponentTiers(Protocol):
    """What a component delegates to: the tiers of one component of one cache. Nodes are opaque to the component."""

    def write_through(self, node: object) -> None: ...
    def write_back(self, node: object) -> None: ...
    def prefetch(self, node: object, indices: Indices) -> None: ...


class TreeComponent(ABC):
    """Geometry of full attention, a sliding window or a recurrent state.

    `prefix_closed`: device data is a prefix of every path, so eviction goes leaf first (full attention).
    `at_node_end`: one unit at a node's end instead of one a page (recurrent state).
    """

    prefix_closed: ClassVar[bool] = False
    at_node_end: ClassVar[bool] = False

    def __init__(self, name: str, tiers: ComponentTiers) -> None:
        self.name = name
        self._tiers = tiers

    @abstractmethod
    def first_needed(self, length: int) -> int:
        """The first token position whose data must be present to continue from `length`; 0 <= result <= length.

        A tree tries lengths from the longest down and skips those that cannot be usable, on the strength of two rules. The result
        never decreases with `length`. And it is below `length` for every length above 0, or equal to `length` for every one (a
        window of the own position alone, which needs nothing of a prefix). A geometry that can go on from some lengths without
        any data (chunked local attention, where a chunk begins: `length - length % chunk`) asks for the last position there:
        `max(0, min(length - length % chunk, length - 1))`.
        """

    @final
    def write_through(self, node: object) -> None:
        """After an insert: queue the copy L1 -> L2 of a node."""
        self._tiers.write_through(node)

    @final
    def write_back(self, node: object) -> None:
        """Before a host eviction: hand the node's data on to L3, where one is configured."""
        self._tiers.write_back(node)

    @final
    def prefetch(self, node: object, indices: Indices) -> None:
        """On a hit in a lower tier: bring the node's data into the device pages `indices`."""
        self._tiers.prefetch(node, indices)
