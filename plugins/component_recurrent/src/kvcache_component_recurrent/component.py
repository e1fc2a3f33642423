"""RecurrentStateComponent: to go on from a length, exactly the state at that length is needed."""

from typing import Any, ClassVar, final

from kvcache_core.contracts.component import ComponentTiers, TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec


@final
class RecurrentStateComponent(TreeComponent):
    """Geometry of a recurrent state: one unit at a node's end, which sums up everything before it."""

    at_node_end: ClassVar[bool] = True

    def first_needed(self, length: int) -> int:
        return max(0, length - 1)


def make(options: Any, spec: ComponentSpec, tiers: ComponentTiers) -> RecurrentStateComponent:
    """The factory named by the descriptor. A state has no options; its shape matters to pools alone."""
    return RecurrentStateComponent(spec.name, tiers)
