"""Where the state of a sequence is read from and written to in one forward."""

from typing import NamedTuple


class StateSlot(NamedTuple):
    """Slots of one request in one component. The state is read from `source` and written to `target`: the same slot goes on in
    place, another one leaves the source as it is, which makes it a snapshot. Without a past (position 0) `source` is not read."""

    source: int
    target: int
