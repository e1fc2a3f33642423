"""Where a sequence leaves a snapshot of its state, and so where the forward of a prompt has to end.

Reuse of a prefix needs the state exactly at its end, and a state exists only where a forward ended. The positions are those of
the contract: the last page boundary before the prompt's last token, an interval, and every page boundary that decoding passes, of
which the last one is kept. It knows no slots.
"""

from dataclasses import dataclass
from typing import Final, final

from kvcache_core.contracts.tokens import floor_page

LEAST_INTERVAL: Final = 4096
"""Tokens. Below it, snapshots cost more than the pages they make usable."""


@final
@dataclass(frozen=True, slots=True)
class SnapshotPositions:
    """`interval`: in tokens, a multiple of `page_size`; None for a model without states, whose prompts are cut nowhere."""

    page_size: int
    interval: int | None = None

    def chunk_end(self, start: int, length: int, chunk_tokens: int) -> int:
        """Where the chunk of a prompt of `length` tokens ends that begins at `start`."""
        end = min(length, start + chunk_tokens)
        if self.interval is None:
            return end
        last = floor_page(length - 1, self.page_size)
        following = start - start % self.interval + self.interval
        return min([end, *(cut for cut in (last, following) if cut > start)])

    def keeps(self, position: int, length: int) -> bool:
        """Whether a state at `position` is kept, of a request of which `length` tokens are known."""
        if self.interval is None or position % self.page_size:
            return False
        return position >= floor_page(length - 1, self.page_size) or position % self.interval == 0


def usual_interval(page_size: int, state_bytes: int, token_bytes: int) -> int:
    """Tokens between two snapshots where nobody says: the state takes at most a quarter of the memory of the tokens before it.
    `state_bytes`: of one state; `token_bytes`: of keys and values of one token in all other components."""
    return interval_of_pages(max(LEAST_INTERVAL, 4 * state_bytes // max(1, token_bytes)), page_size)


def interval_of_pages(tokens: int, page_size: int) -> int:
    """`tokens`, or the next multiple of a page."""
    return -(-tokens // page_size) * page_size
