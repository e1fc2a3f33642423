"""What a host has to know of one component of its model: how much of the past the next token needs.

The cache has the same knowledge from its own plugins; a host knows it from its model. It knows no pool and no request.
"""

from dataclasses import dataclass
from typing import Final, final

from kvcache_core.contracts.model_spec import ComponentSpec

LEAST_STATES: Final = 3
"""A request may go on from a cached state, in a slot of its own, with a snapshot besides."""


@final
@dataclass(frozen=True, slots=True)
class Component:
    """`window`: tokens that are seen, own position included; None sees everything. `is_state`: one slot a sequence, no pages."""

    name: str
    window: int | None = None
    is_state: bool = False

    def first_needed(self, length: int) -> int:
        """The first position whose data must be there to go on from `length`; of a state, only the one at `length` itself."""
        if self.is_state:
            return max(0, length - 1)
        return 0 if self.window is None else max(0, length - self.window + 1)

    def most_units(self, n_tokens: int, page_size: int, chunk_tokens: int) -> int:
        """Pages, or slots, that a request of `n_tokens` alone may need at one time, whatever its chunks and its hits are."""
        if self.is_state:
            return LEAST_STATES
        pages = -(-n_tokens // page_size)
        if self.window is None:
            return pages
        window = -(-(self.window - 1) // page_size)
        # What it still has locked, and as much again: of a prefix that is loaded, or decoded until the lock lies behind.
        return min(pages, 2 * window + -(-chunk_tokens // page_size) + 1)


FULL_ATTENTION: Final = (Component("full"),)
"""The components of a model that sees everything."""


def component_of(spec: ComponentSpec) -> Component:
    """As the model describes it to the cache."""
    return Component(spec.name, spec.window, spec.state_shape is not None)
