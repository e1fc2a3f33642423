"""Page numbers and token slots: the contract counts pages, sgl-jax keeps one slot for each token.

Page p holds the slots p x page_size to (p + 1) x page_size - 1 of its data-parallel rank. Slot 0, and with it page 0, is
padding in both worlds and belongs to nobody. It does not know who owns a page.
"""

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.results import Indices

Slots = npt.NDArray[np.int32]
"""int32, one per token."""


def pages_of(slots: npt.NDArray[np.integer], page_size: int) -> Indices:
    """The page of every `page_size`-th slot. `slots` begin at a page boundary of a request; a last page may be partial."""
    if page_size == 1:
        return slots.astype(np.int32)
    return (slots[::page_size] // page_size).astype(np.int32)


def slots_of(pages: Indices, page_size: int) -> Slots:
    """All slots of whole pages, in order."""
    if page_size == 1:
        return pages.astype(np.int32)
    return (pages[:, None] * np.int32(page_size) + np.arange(page_size, dtype=np.int32)).reshape(-1)
