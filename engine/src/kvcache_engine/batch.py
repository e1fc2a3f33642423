"""One forward as its caller describes it: tokens, where they stand, and which pages and states belong to whom."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int32]


class StateSlots(NamedTuple):
    """int32 [B] each, slots of one component: a row's state is read from `source` and, after its last token, written to `target`.
    Where a row starts at position 0, `source` is not read."""

    source: Numbers
    target: Numbers


def no_states() -> Mapping[str, StateSlots]:
    """For models without recurrent components."""
    return {}


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward of B rows, each with up to T new tokens. All arrays are int32, owned by the caller and only read.

    ids: [B, T]; start: [B], absolute position of ids[:, 0]; lengths: [B], how many of a row's T tokens are real (at least 1);
    page_tables: by component with pages [B, P], page number by page ordinal, 0 (the dummy) where a row has no page. A window's
    table needs no pages before the window of the row's first new token. state_slots: by component with states.
    """

    ids: Numbers
    start: Numbers
    lengths: Numbers
    page_tables: Mapping[str, Numbers]
    state_slots: Mapping[str, StateSlots] = field(default_factory=no_states)
