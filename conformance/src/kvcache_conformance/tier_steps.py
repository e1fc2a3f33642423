"""The steps from which the rules of `TierMachine` are composed: requests that load, prefixes put into the host, branches.

It knows no rule and draws nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kvcache_conformance.claims import Match
from kvcache_conformance.geometries import FULL
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.machine_rules import MachineRules
from kvcache_conformance.machine_steps import MAX_TOKENS, Draft
from kvcache_conformance.reference_model import TOKEN_BYTES
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.tiered_world import Load, TieredWorld
from kvcache_conformance.transfer_script import Direction
from kvcache_core.contracts.locks import Refused
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.contracts.pools import DevicePool
from kvcache_core.contracts.tokens import ExtraKey, floor_page

TIER_EVENTS = (
    "write ok",
    "write failed",
    "load ok",
    "load failed",
    "ticket ok",
    "ticket not ok",
    "loads",
    "joins",
    "load cut short",
    "cancelled",
    "aborted while loading",
    "load refused: NO_ROOM",
    "load refused: STALE",
    "load under pressure",
    "late load thrown away",
    "split under a write",
    "split under a load",
    "evicted under a write",
    "inserted again under a write",
    "inserted again under a load",
    "pages lost, counted",
    "reset under load",
    "round trip",
)
"""Situations that a run must have reached, beside those of the one-tier machine."""


class TierSizes(NamedTuple):
    """What a world is built with: `pages` on the device, `slots` in the host, for each component; of windows and states only one
    part in `share` of that. `window`: in tokens, 0 for that of the component's spec; `interval`: tokens between two snapshots of
    a state, 0 for one at the end of each forward."""

    page_size: int
    pages: int
    slots: int
    backup_on: str
    persist_on: str = "never"
    window: int = 0
    interval: int = 0
    share: int = 1

    def host(self, components: Sequence[ComponentSpec], make_pool: Callable[[str], DevicePool]) -> HostModel:
        """The host without its cache."""
        # A window of one token needs nothing but the own position: alone it would let anything match.
        least = 2 if len(components) == 1 else 1
        specs = [
            replace(spec, window=max(least, self.window)) if spec.window is not None and self.window else spec
            for spec in components
        ]
        totals = {spec.name: self.pages if spec == FULL else max(1, self.pages // self.share) for spec in specs}
        return HostModel(self.page_size, specs, totals, make_pool, self.interval)

    @property
    def ratio(self) -> float:
        """Of the host tier, in the configuration."""
        return max((self.slots + 0.5) / self.pages, 1.01 / max(1, self.pages // self.share))


TierFactory = Callable[[TierSizes], TieredWorld]


class Situation(NamedTuple):
    """What hypothesis chooses for one composite step; each uses what it needs."""

    drafts: tuple[Draft, Draft, Draft]
    extra_key: ExtraKey
    tails: tuple[list[int], list[int]]
    number: int
    flag: bool
    other_flag: bool
    fates: list[bool]


class Waiting(NamedTuple):
    """A request that waits for its load."""

    request: RequestModel
    load: Load


class TierSteps(MachineRules):
    """One cache with a host tier, and requests that wait for loads."""

    def __init__(self, factory: TierFactory, events: Counter[str]) -> None:
        super().__init__(lambda page_size, pages: self.tiered.checked, events)
        self.waiting: list[Waiting] = []
        self._factory = factory
        self._tiered: TieredWorld | None = None

    @property
    def tiered(self) -> TieredWorld:
        assert self._tiered is not None
        return self._tiered

    def begin(self, sizes: TierSizes) -> None:
        """A new cache in new memory."""
        self.sizes = sizes
        self._tiered = self._factory(sizes)
        self.build(sizes.page_size, sizes.pages)

    def drain(self) -> None:
        self.tiered.drain()
        self.events.update(self.tiered.ledger.events)

    def end_waiting(self) -> None:
        for waiting in self.waiting:
            self.abandon(waiting)
        self.waiting.clear()

    # steps

    def abandon(self, waiting: Waiting) -> None:
        self.events["aborted while loading"] += not waiting.load.ticket.done
        self.tiered.cancel(waiting.load)

    def ask(self, prompt: list[int], extra_key: ExtraKey) -> Waiting | RequestModel | None:
        """An admission: a request that waits for its load, or runs with what the device has, or None where there is no room."""
        request = RequestModel(self.world, prompt, extra_key)
        match = request.find()
        if match.result.host_len > match.result.device_len:
            load = self.tiered.load(match)
            if isinstance(load, Load):
                return Waiting(request, load)
            assert load is not Refused.STALE, "a match made in the same moment is not stale"
        return request if request.admit() else None

    def resume(self, waiting: Waiting) -> RequestModel | None:
        """A load is done: the request runs on it, or on what there is."""
        held = self.tiered.claim(waiting.load)
        request = waiting.request
        if held is None:
            return request if request.admit() else None
        if not request.start(held):
            return None
        return request

    def run(self, request: RequestModel, fate: str) -> None:
        self.prefill(request)
        self.end_request(request, fate)

    def serve_whole(self, prompt: list[int], extra_key: ExtraKey, fate: str = "finish") -> RequestModel | None:
        """One request, its load included, with idle steps until that is done."""
        asked = self.ask(prompt, extra_key)
        if isinstance(asked, Waiting):
            self.tiered.settle()
            asked = self.resume(asked)
        if asked is not None:
            self.run(asked, fate)
        return asked

    def put_in_host(self, prompt: list[int], extra_key: ExtraKey) -> Match:
        """Compute a prefix and let device memory lose it. Under locks, or without room, some of it stays or is lost."""
        self.tiered.script.congested = False
        self.serve_whole(prompt, extra_key)
        self.tiered.settle()
        for name, allocator in self.world.host.allocators.items():
            self.world.evict(name, allocator.total)
        self.tiered.settle()
        return self.world.match(np.asarray(prompt, np.int32), extra_key)

    def branch(self, stem: list[int], more: list[int], extra_key: ExtraKey, direction: Direction) -> None:
        """A request that leaves `stem` is computed on what the device has; counts whether it cut what is being copied."""
        at = floor_page(len(stem), self.world.host.page_size)
        tokens = np.asarray(stem[:at], np.int32).tobytes()
        cut = False
        for copy in self.tiered.script.pending[direction]:
            ends = [len(p) for k, p in self.tiered.ledger.keys_of(copy) if k == extra_key and p.startswith(tokens)]
            before = any(p and tokens.startswith(p) for k, p in self.tiered.ledger.keys_of(copy) if k == extra_key)
            cut |= before and any(end > at * TOKEN_BYTES for end in ends)
        request = self.admit([*stem, *more][:MAX_TOKENS], extra_key)
        if request is None:
            return
        self.prefill(request)
        done = request.to_compute == 0 and len(request.tokens) >= at + self.world.host.page_size
        self.end_request(request, "finish")
        self.events[f"split under a {direction}"] += cut and done

    def long(self, s: Situation) -> list[int]:
        """A prompt of several pages, whatever the page size."""
        return (self.sequence(s.drafts[0]) * MAX_TOKENS)[: MAX_TOKENS - 6]

    def whole(self, s: Situation) -> list[int]:
        """A prompt of some whole pages, as many as even a small host may have room for."""
        return self.long(s)[: self.world.host.page_size * len(s.tails[1])]

    def stem(self, prompt: list[int], s: Situation) -> list[int]:
        """Some whole pages of it, but not all."""
        page = self.world.host.page_size
        return prompt[: page * (1 + s.number % (len(prompt) // page - 1))]

    def serve_here(self, prompt: list[int], extra_key: ExtraKey) -> None:
        """One request on what the device has, without a load and in one chunk."""
        request = self.admit(prompt, extra_key)
        if request is not None:
            self.chunk(request, MAX_TOKENS)
            self.end_request(request, "finish")
