"""A transfer controller that does what a script says: when copies end, in which order, and which of them fail.

It stands in for a cache's own through `CacheDeps.controller` and implements the same protocol structurally. Pages move by value:
device memory is numpy, the host's slots are a plain dictionary. A failed copy leaves rubbish at its destination, so a cache that
uses it is found out by content. It does not know trees, tokens or what is worth copying.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, cast, final

import numpy as np

from kvcache_conformance.claims import require
from kvcache_conformance.page_content import BYTES, LAYERS, Content
from kvcache_conformance.pool_model import Memory
from kvcache_core.contracts.results import Indices
from kvcache_core.transfer_queue import QueuedGather, QueuedScatter, TransferQueue

Direction = Literal["write", "load"]
OnCommit = Callable[[bool], None]

RUBBISH = 0xEE
"""What a failed copy leaves behind."""


class SlotPool(Protocol):
    """The part of a host pool that hands out slots; their content is in the script."""

    @property
    def n_free(self) -> int: ...

    def alloc(self, n: int) -> Indices | None: ...

    def evict(self, n: int) -> Indices: ...


class ScriptParts(Protocol):
    """What a controller factory is called with, as far as the script needs it."""

    @property
    def queue(self) -> TransferQueue: ...

    @property
    def host_pools(self) -> Mapping[str, SlotPool]: ...

    @property
    def evict_callback(self) -> Callable[[str, Indices], None]: ...


@final
class ScriptedCopy:
    """One transfer. `device` and `host`: its pages and slots, one to one. `good`: whether it will succeed."""

    def __init__(
        self, direction: Direction, component: str, device: Indices, host: Indices, good: bool, on_commit: OnCommit
    ) -> None:
        self.direction: Direction = direction
        self.component = component
        self.device: list[int] = device.tolist()
        self.host: list[int] = host.tolist()
        self.good = good
        self.queued: QueuedGather | QueuedScatter | None = None
        self.source: Memory | None = None
        self.ended = False
        self.ok = False
        self.cancelled = False
        self._on_commit = on_commit
        self._forget: Callable[[ScriptedCopy], None] | None = None

    @property
    def done(self) -> bool:
        return self.ended

    @property
    def dispatched(self) -> bool:
        return self.queued is not None and self.queued.dispatched

    def cancel(self) -> bool:
        """As `Transfer.cancel`: True, and committed as failed, where nothing was dispatched yet."""
        if self.ended or self.dispatched or self.direction == "write":
            return False
        if self.queued is not None:
            self.queued.cancelled = True
        self.cancelled = True
        assert self._forget is not None
        self._forget(self)
        self.end(False)
        return True

    def withdrawn_by(self, forget: Callable[["ScriptedCopy"], None]) -> None:
        """Who is told when the copy is cancelled."""
        self._forget = forget

    def end(self, ok: bool) -> None:
        """Commit."""
        assert not self.ended, "a copy is committed once"
        self.ended, self.ok = True, ok
        self._on_commit(ok)


@final
class TransferScript:
    """The dials, and what happened. Hand `script.make` to `CacheDeps.controller`.

    `fates`: whether the next copies succeed, in the order they are submitted; True when it is empty. `allowed`: how many copies
    of each direction the next polls may commit; None for all. `loads_first`: which direction commits first. `congested`:
    `has_room` says no. `slow_assembly`: a load's pages are queued by the next poll, not by the call.
    """

    def __init__(self) -> None:
        self.fates: deque[bool] = deque()
        self.allowed: dict[Direction, int | None] = {"write": None, "load": None}
        self.loads_first = False
        self.congested = False
        self.slow_assembly = False
        self.pending: dict[Direction, deque[ScriptedCopy]] = {"write": deque(), "load": deque()}
        self.slots: dict[tuple[str, int], Content] = {}
        self.closed = 0
        self._started: list[ScriptedCopy] = []
        self.ended: list[ScriptedCopy] = []

    def make(self, parts: ScriptParts) -> "ScriptedController":
        """The controller factory."""
        return ScriptedController(parts, self)

    def hold_back(self) -> None:
        """No copy ends until `let_all_through`."""
        self.allowed = {"write": 0, "load": 0}

    def let_all_through(self) -> None:
        self.allowed = {"write": None, "load": None}

    @property
    def quiet(self) -> bool:
        """Nothing is under way."""
        return not any(self.pending.values())

    def take_started(self) -> list[ScriptedCopy]:
        """Copies submitted since the last call."""
        taken, self._started = self._started, []
        return taken

    def take_ended(self) -> list[ScriptedCopy]:
        """Copies committed or cancelled since the last call, in that order."""
        taken, self.ended = self.ended, []
        return taken

    def submit(self, copy: ScriptedCopy) -> None:
        """For the controller."""
        self.pending[copy.direction].append(copy)
        self._started.append(copy)
        copy.withdrawn_by(self._withdraw)

    def note_end(self, copy: ScriptedCopy) -> None:
        """For the controller."""
        self.ended.append(copy)

    def _withdraw(self, copy: ScriptedCopy) -> None:
        self.pending[copy.direction].remove(copy)
        self.note_end(copy)


@final
class ScriptedController:
    """Commits in `poll` alone (cancelled loads aside), in the order of submission for each direction."""

    def __init__(self, parts: ScriptParts, script: TransferScript) -> None:
        self._parts = parts
        self._script = script

    def has_room(self, component: str, n: int) -> bool:
        return not self._script.congested

    def reserve(self, component: str, n: int) -> Indices | None:
        pool = self._parts.host_pools[component]
        slots = pool.alloc(n)
        if slots is None:
            evicted = pool.evict(n - pool.n_free)
            if len(evicted):
                self._parts.evict_callback(component, evicted)
            slots = pool.alloc(n)
        return slots

    def write(self, host_indices: Indices, device_indices: Indices, component: str, on_commit: OnCommit) -> ScriptedCopy:
        require(len(host_indices) == len(device_indices) > 0, "a write copies pages one to one, and at least one")
        copy = ScriptedCopy("write", component, device_indices, host_indices, self._fate(), on_commit)
        copy.queued = self._parts.queue.enqueue_gather(component, device_indices)
        self._script.submit(copy)
        return copy

    def load(self, device_indices: Indices, host_indices: Indices, component: str, on_commit: OnCommit) -> ScriptedCopy:
        require(len(host_indices) == len(device_indices) > 0, "a load copies pages one to one, and at least one")
        copy = ScriptedCopy("load", component, device_indices, host_indices, self._fate(), on_commit)
        missing = [slot for slot in copy.host if (component, slot) not in self._script.slots]
        require(not missing, f"a load reads slots {missing} of {component!r}, which no copy ever reached")
        copy.source = np.stack([self._script.slots[component, slot] for slot in copy.host])
        self._script.submit(copy)
        if not self._script.slow_assembly:
            self._queue(copy)
        return copy

    def poll(self) -> int:
        script = self._script
        for copy in script.pending["load"]:
            self._queue(copy)
        order: tuple[Direction, Direction] = ("load", "write") if script.loads_first else ("write", "load")
        return sum(self._commit(direction) for direction in order)

    def close(self) -> None:
        self._script.closed += 1

    def _commit(self, direction: Direction) -> int:
        script, n = self._script, 0
        pending, allowed = script.pending[direction], script.allowed[direction]
        while pending and pending[0].dispatched and (allowed is None or n < allowed):
            copy = pending.popleft()
            if direction == "write":
                self._land(copy)
            script.note_end(copy)
            copy.end(copy.good)
            n += 1
        return n

    def _land(self, copy: ScriptedCopy) -> None:
        queued = copy.queued
        assert isinstance(queued, QueuedGather) and queued.pages is not None
        pages = cast(Memory, queued.pages)
        for row, slot in enumerate(copy.host, queued.start):
            self._script.slots[copy.component, slot] = np.array(pages[row]) if copy.good else _rubbish()

    def _queue(self, copy: ScriptedCopy) -> None:
        if copy.queued is None:
            assert copy.source is not None
            pages = copy.source if copy.good else np.stack([_rubbish() for _ in copy.device])
            copy.queued = self._parts.queue.enqueue_scatter(copy.component, np.asarray(copy.device, np.int32), pages)

    def _fate(self) -> bool:
        return self._script.fates.popleft() if self._script.fates else True


def _rubbish() -> Content:
    return np.full((LAYERS, BYTES), RUBBISH, np.uint8)
