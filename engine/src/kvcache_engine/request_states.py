"""The recurrent states of one request, for every component that has any: where the state is now, and the last snapshot.

It allocates nothing and frees nothing; it only remembers. A state is read from one slot and written to the same or another one,
so a snapshot costs a slot and no copy: the forward that ends there leaves the state behind, and the next one writes elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.results import NO_INDICES, Indices, Segment, Values
from kvcache_engine.state_slots import StateSlot


@dataclass(slots=True)
class _Slots:
    """`current`: the slot of the state after all that is computed; 0 before the first token. `own`: it is the request's, not the
    cache's. `target`: allocated for the next forward; 0 where it goes on in place. `kept`: the snapshot's slot, 0 without."""

    current: int = 0
    own: bool = False
    target: int = 0
    kept: int = 0


@final
class RequestStates:
    """Slots by component name. `page_size` in tokens."""

    __slots__ = ("_kept_at", "_page_size", "_slots")

    def __init__(self, components: Iterable[str] = (), page_size: int = 1) -> None:
        self._page_size = page_size
        self._slots = {name: _Slots() for name in components}
        self._kept_at = 0

    @property
    def components(self) -> Iterable[str]:
        return self._slots.keys()

    @property
    def kept_at(self) -> int:
        """The position of the snapshot that the request owns; 0 without one."""
        return self._kept_at

    def missing(self, component: str) -> int:
        """Slots that the next forward lacks: one, unless it goes on in place. The cache's and snapshots are only read."""
        slots = self._slots[component]
        in_place = slots.own and slots.current != slots.kept
        return int(not in_place and not slots.target)

    def extend(self, component: str, indices: Indices) -> None:
        """Take over what was allocated for the next forward: at most one slot."""
        if len(indices):
            [self._slots[component].target] = indices.tolist()

    def row(self) -> dict[str, StateSlot]:
        """For the next forward."""
        return {name: StateSlot(slots.current, slots.target or slots.current) for name, slots in self._slots.items()}

    def advance(self, position: int, *, keep: bool) -> Mapping[str, Indices]:
        """A forward that ends at `position` was dispatched; with `keep` its state is a snapshot from now on, which replaces the
        one before. Returns what the request no longer needs, by component."""
        left: dict[str, Indices] = {}
        for name, slots in self._slots.items():
            if slots.target:
                slots.current, slots.target, slots.own = slots.target, 0, True
            if keep:
                if slots.kept:
                    left[name] = _numbers(slots.kept)
                slots.kept = slots.current
        if keep:
            self._kept_at = position
        return left

    def values(self) -> Values:
        """Offer the snapshot to `insert`. Never the running slot: it goes on being written."""
        return {
            name: (Segment(self._kept_at - self._page_size, self._kept_at, _numbers(slots.kept)),) if slots.kept else ()
            for name, slots in self._slots.items()
        }

    def begin(self, lock: Lock) -> None:
        """Go on from the locked prefix. Its state is read where the cache has it, and never written there."""
        for name, slots in self._slots.items():
            [slots.current] = lock.segment(name).indices.tolist() or [0]
            slots.own = False

    def remap(self, lock: Lock) -> None:
        """The cache has the snapshot's state now, unless `lock` ends before it. Call before duplicates are freed."""
        if lock.length != self._kept_at:
            return
        for name, slots in self._slots.items():
            if slots.current == slots.kept:
                [slots.current] = lock.segment(name).indices.tolist()
                slots.own = False
            slots.kept = 0
        self._kept_at = 0

    def owned(self, component: str) -> Indices:
        """What the request must give back or offer; the snapshot first."""
        slots = self._slots[component]
        running = slots.current if slots.own and slots.current != slots.kept else 0
        return _numbers(*(slot for slot in (slots.kept, running, slots.target) if slot))

    def clear(self) -> Mapping[str, Indices]:
        """Forget everything and return what the request still owned, by component."""
        owned = {name: self.owned(name) for name in self._slots}
        self._slots = {name: _Slots() for name in self._slots}
        self._kept_at = 0
        return owned


def _numbers(*slots: int) -> Indices:
    return np.array(slots, np.int32) if slots else NO_INDICES
