"""What a model keeps of its prompts, for benchmarks of the tree: which components, and what a request offers of each.

It knows no cache and no pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from kvcache_core.contracts.model_spec import ComponentSpec, ModelClass
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import Indices, Segment, Values
from kvcache_core.contracts.tokens import floor_page
from radix_tree.workload import PAGE

WINDOW: Final = 512
"""Tokens that a window sees, as in Gemma 3."""
INTERVAL: Final = 2048
"""Tokens between two snapshots of a state: where the prompts of the workload branch."""


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """`specs`: the components, `full` first."""

    model_class: ModelClass
    specs: tuple[ComponentSpec, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)

    def values(self, n_tokens: int, allocators: Mapping[str, Allocator]) -> Values:
        """What a request of `n_tokens` offers: every page of full attention; states after every interval and at the end; pages of
        the window from where the first of those states needs them."""
        ends = [*range(INTERVAL, n_tokens, INTERVAL), n_tokens]
        values: dict[str, tuple[Segment, ...]] = {}
        for spec in self.specs:
            allocator = allocators[spec.name]
            if spec.state_shape is not None:
                values[spec.name] = tuple(Segment(end - PAGE, end, _take(allocator, 1)) for end in ends)
            else:
                start = 0 if spec.window is None else floor_page(max(0, ends[0] - spec.window + 1), PAGE)
                values[spec.name] = (Segment(start, n_tokens, _take(allocator, (n_tokens - start) // PAGE)),)
        return values


LAYOUTS: Final[Mapping[str, Layout]] = {
    "full": Layout("full_attention", (ComponentSpec("full"),)),
    "hybrid": Layout(
        "hybrid_recurrent",
        (ComponentSpec("full"), ComponentSpec("swa", window=WINDOW), ComponentSpec("recurrent", state_shape=(1,))),
    ),
}
"""`hybrid`: a model with layers of all three kinds."""


def _take(allocator: Allocator, n: int) -> Indices:
    indices = allocator.alloc(n)
    assert indices is not None
    return indices
