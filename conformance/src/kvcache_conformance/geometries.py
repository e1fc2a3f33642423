"""Full attention, a sliding window and a recurrent state as bare geometry, for tests of trees and caches without any plugin.

They have the same three lines as the published components, written again: the kit must not lean on what it judges.
"""

from typing import final

from kvcache_core.contracts.component import TreeComponent
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


@final
class FullGeometry(TreeComponent):
    """Every earlier token is needed."""

    prefix_closed = True

    def __init__(self, name: str = "full") -> None:
        super().__init__(name, NoTiers())

    def first_needed(self, length: int) -> int:
        return 0


@final
class WindowGeometry(TreeComponent):
    """`window` tokens are seen, the own position included; so `window - 1` earlier ones are needed."""

    def __init__(self, window: int, name: str = "swa") -> None:
        super().__init__(name, NoTiers())
        self._window = window

    def first_needed(self, length: int) -> int:
        return max(0, length - self._window + 1)


@final
class StateGeometry(TreeComponent):
    """One state after the last token stands for all of them."""

    at_node_end = True

    def __init__(self, name: str = "recurrent") -> None:
        super().__init__(name, NoTiers())

    def first_needed(self, length: int) -> int:
        return max(0, length - 1)


def geometry_of(spec: ComponentSpec) -> TreeComponent:
    """The geometry of what a host says about one component of its model."""
    if spec.state_shape is not None:
        return StateGeometry(spec.name)
    if spec.window is not None:
        return WindowGeometry(spec.window, spec.name)
    return FullGeometry(spec.name)


FULL = ComponentSpec("full")
SWA = ComponentSpec("swa", window=6)
"""With pages of 4 tokens the window is no multiple of a page, and needs two of them."""
RECURRENT = ComponentSpec("recurrent", state_shape=(2, 16))
