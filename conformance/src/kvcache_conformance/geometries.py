"""Full attention, a sliding window and a recurrent state as bare geometry, for tests of trees and caches without any plugin.

They have the same three lines as the published components, written again: the kit must not lean on what it judges.
"""

from typing import Any, final

from kvcache_core.contracts.component import ComponentTiers, TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.contracts.results import Indices


@final
class NoTiers:
    """Tiers of a component that has none: asking for a transfer is a fault of whoever asks."""

    def write_through(self, node: object) -> None:
        raise AssertionError("a write-through was asked of a component without tiers")

    def write_back(self, node: object) -> None:
        raise AssertionError("a write-back was asked of a component without tiers")

    def prefetch(self, node: object, indices: Indices) -> None:
        raise AssertionError("a prefetch was asked of a component without tiers")


NO_TIERS = NoTiers()


@final
class FullGeometry(TreeComponent):
    """Every earlier token is needed."""

    prefix_closed = True

    def __init__(self, name: str = "full", tiers: ComponentTiers = NO_TIERS) -> None:
        super().__init__(name, tiers)

    def first_needed(self, length: int) -> int:
        return 0


@final
class WindowGeometry(TreeComponent):
    """`window` tokens are seen, the own position included; so `window - 1` earlier ones are needed."""

    def __init__(self, window: int, name: str = "swa", tiers: ComponentTiers = NO_TIERS) -> None:
        super().__init__(name, tiers)
        self._window = window

    def first_needed(self, length: int) -> int:
        return max(0, length - self._window + 1)


@final
class StateGeometry(TreeComponent):
    """One state after the last token stands for all of them."""

    at_node_end = True

    def __init__(self, name: str = "recurrent", tiers: ComponentTiers = NO_TIERS) -> None:
        super().__init__(name, tiers)

    def first_needed(self, length: int) -> int:
        return max(0, length - 1)


def geometry_of(spec: ComponentSpec, tiers: ComponentTiers = NO_TIERS) -> TreeComponent:
    """The geometry of what a host says about one component of its model."""
    if spec.state_shape is not None:
        return StateGeometry(spec.name, tiers)
    if spec.window is not None:
        return WindowGeometry(spec.window, spec.name, tiers)
    return FullGeometry(spec.name, tiers)


def make_geometry(options: Any, spec: ComponentSpec, tiers: ComponentTiers) -> TreeComponent:
    """`geometry_of` as a component factory, for `CacheDeps.components`: it stands in for a component's package."""
    return geometry_of(spec, tiers)


FULL = ComponentSpec("full")
SWA = ComponentSpec("swa", window=6)
"""With pages of 4 tokens the window is no multiple of a page, and needs two of them."""
RECURRENT = ComponentSpec("recurrent", state_shape=(2, 16))
