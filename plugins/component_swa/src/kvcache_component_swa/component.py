"""SWAComponent: to go on from a length, the last window of positions is needed, and nothing before it."""

from typing import Any, final

from kvcache_core.contracts.component import ComponentTiers, TreeComponent
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.errors import ConfigError


@final
class SWAComponent(TreeComponent):
    """Geometry of a sliding window of `window` tokens, own position included: the token at position p sees p - window + 1 to p.

    Raises ValueError for a window below 1.
    """

    def __init__(self, name: str, window: int, tiers: ComponentTiers) -> None:
        super().__init__(name, tiers)
        if window < 1:
            raise ValueError(f"a window counts its own position and is at least 1, not {window}")
        self._window = window

    def first_needed(self, length: int) -> int:
        # The next token has position `length`, and its window begins at length - window + 1.
        return max(0, length - self._window + 1)


def make(options: Any, spec: ComponentSpec, tiers: ComponentTiers) -> SWAComponent:
    """The factory named by the descriptor. The window is the model's, so there are no options.

    Raises:
        ConfigError: the host's model spec gives this component no usable window.
    """
    if spec.window is None or spec.window < 1:
        raise ConfigError(
            f"component {spec.name!r} needs a window of at least 1 token in the host's model spec, not {spec.window}"
        )
    return SWAComponent(spec.name, spec.window, tiers)
