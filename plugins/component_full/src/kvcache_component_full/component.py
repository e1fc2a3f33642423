"""FullComponent: to go on from any length, every position before it is needed."""

from typing import Any, ClassVar, final

from kvcache_core.contracts.component import ComponentTiers, TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec


@final
class FullComponent(TreeComponent):
    """Geometry of full attention."""

    prefix_closed: ClassVar[bool] = True

    def first_needed(self, length: int) -> int:
        return 0


def make(options: Any, spec: ComponentSpec, tiers: ComponentTiers) -> FullComponent:
    """The factory named by the descriptor. Full attention has no options."""
    return FullComponent(spec.name, tiers)
