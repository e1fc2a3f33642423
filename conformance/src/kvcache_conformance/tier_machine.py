"""The state machine for a cache with a host tier: everything the one-tier machine does, with copies under way, and loads.

Hypothesis chooses when copies end, in which order of directions, and which fail. The rules compose what independent calls hardly
ever line up to: two loads over one prefix, a load into a full pool, branches inside what is being copied, the same tokens
computed again while they are copied, aborts while loading, a reset under load, and a host tier smaller than the device, than a
request, or of one page.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvcache_conformance.claims import Match
from kvcache_conformance.machine_rules import DRAFTS, EXTRA_KEYS, SOME, TAILS, MachineRules
from kvcache_conformance.machine_steps import MAX_RUNNING, MAX_TOKENS, Draft
from kvcache_conformance.prefix_cache_machine import drive
from kvcache_conformance.reference_model import TOKEN_BYTES
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.tiered_world import Load, TieredWorld
from kvcache_conformance.transfer_script import Direction
from kvcache_core.contracts.locks import Refused
from kvcache_core.contracts.tokens import ExtraKey, floor_page

TIER_EVENTS = (
    "write ok",
    "write failed",
    "load ok",
    "load failed",
    "load not ok",
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
    """What a world is built with: `pages` on the device, `slots` in the host, for each component."""

    page_size: int
    pages: int
    slots: int
    backup_on: str


TierFactory = Callable[[TierSizes], TieredWorld]

_fates = st.lists(st.booleans(), max_size=4)
_few = st.sampled_from([None, None, 0, 1, 2])


class Waiting(NamedTuple):
    """A request that waits for its load."""

    request: RequestModel
    load: Load


class TierMachine(MachineRules):
    """The rules about copies."""

    def __init__(self, factory: TierFactory, events: Counter[str]) -> None:
        super().__init__(lambda page_size, pages: self.tiered.checked, events)
        self.waiting: list[Waiting] = []
        self._factory = factory
        self._tiered: TieredWorld | None = None

    @property
    def tiered(self) -> TieredWorld:
        assert self._tiered is not None
        return self._tiered

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        room=st.integers(MAX_TOKENS, 3 * MAX_TOKENS),
        slots=st.sampled_from(["one", "few", "half", "same", "double", "plenty", "plenty"]),
        backup_on=st.sampled_from(["insert", "evict"]),
    )
    def choose_pools(self, page_size: int, room: int, slots: str, backup_on: str) -> None:
        pages = room // page_size
        sizes = {"one": 1, "few": 3, "half": max(1, pages // 2), "same": pages, "double": 2 * pages, "plenty": 8 * pages}
        self._tiered = self._factory(TierSizes(page_size, pages, sizes[slots], backup_on))
        self.build(page_size, pages)

    @invariant()
    def tiers_are_right(self) -> None:
        if self._tiered is not None:
            self._tiered.verify()

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

    # dials

    @rule(writes=_few, loads=_few, loads_first=st.booleans(), fates=_fates)
    def set_dials(self, writes: int | None, loads: int | None, loads_first: bool, fates: list[bool]) -> None:
        script = self.tiered.script
        script.allowed = {"write": writes, "load": loads}
        script.loads_first = loads_first
        script.fates.extend(fates)

    @rule(congested=st.booleans(), slow=st.booleans())
    def set_more_dials(self, congested: bool, slow: bool) -> None:
        self.tiered.script.congested = congested
        self.tiered.script.slow_assembly = slow

    @rule(idle=st.booleans())
    def turn(self, idle: bool) -> None:
        if idle:
            self.tiered.host.idle()
        self.tiered.poll()

    # loads

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, more=SOME)
    def round_trip(self, draft: Draft, extra_key: ExtraKey, more: int) -> None:
        """Out of device memory and back."""
        prompt = self.sequence(draft)
        self.put_in_host(prompt, extra_key)
        request = self.serve_whole([*prompt, more % 3][: MAX_TOKENS + 1], extra_key)
        whole = floor_page(len(prompt), self.world.host.page_size)
        self.events["round trip"] += request is not None and request.hits >= whole > 0

    @precondition(lambda self: len(self.waiting) < MAX_RUNNING)
    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS)
    def start_load(self, draft: Draft, extra_key: ExtraKey) -> None:
        """A request begins to wait."""
        asked = self.ask(self.sequence(draft), extra_key)
        if isinstance(asked, Waiting):
            self.waiting.append(asked)
        elif asked is not None:
            self.run(asked, "finish")

    @precondition(lambda self: self.waiting)
    @rule(which=SOME, patient=st.booleans())
    def end_load(self, which: int, patient: bool) -> None:
        """It runs if its load is done, goes on waiting, or is aborted."""
        waiting = self.waiting[which % len(self.waiting)]
        if not waiting.load.ticket.done and patient:
            self.tiered.turn()
        if waiting.load.ticket.done:
            self.waiting.remove(waiting)
            request = self.resume(waiting)
            if request is not None:
                self.run(request, "finish")
        elif not patient:
            self.waiting.remove(waiting)
            self.abandon(waiting)

    @rule(
        draft=DRAFTS,
        extra_key=EXTRA_KEYS,
        tails=TAILS,
        fates=_fates,
        dispatched=st.booleans(),
        leaver=st.sampled_from([None, 0, 1]),
        evict=st.booleans(),
    )
    def race_two_loads(
        self,
        draft: Draft,
        extra_key: ExtraKey,
        tails: tuple[list[int], list[int]],
        fates: list[bool],
        dispatched: bool,
        leaver: int | None,
        evict: bool,
    ) -> None:
        """Two requests load one prefix, the second from farther on; one may leave, copies may fail."""
        prefix = self.sequence(draft)
        self.put_in_host([*prefix, *tails[1]][:MAX_TOKENS], extra_key)
        self.tiered.script.hold_back()
        self.tiered.script.fates.extend(fates)
        asked = [self.ask(tokens[:MAX_TOKENS], extra_key) for tokens in ([*prefix, *tails[0]], [*prefix, *tails[1], 0])]
        self.world.verify()
        if dispatched:
            self.tiered.host.idle()
        if leaver is not None and isinstance(left := asked[leaver], Waiting):
            asked[leaver] = None
            self.abandon(left)
            self.tiered.verify()
        if evict:
            for name, allocator in self.world.host.allocators.items():
                self.world.evict(name, allocator.total)
        self.tiered.settle()
        for each in asked:
            request = self.resume(each) if isinstance(each, Waiting) else each
            if request is not None:
                self.run(request, "finish")

    @rule(drafts=st.tuples(DRAFTS, DRAFTS, DRAFTS), extra_key=EXTRA_KEYS, hold=st.booleans())
    def load_under_pressure(self, drafts: tuple[Draft, Draft, Draft], extra_key: ExtraKey, hold: bool) -> None:
        """The device is full but evictable; the evicted want room in the host, where the prefix is that is being loaded."""
        prompt = self.sequence(drafts[0])
        self.put_in_host(prompt, extra_key)
        for number, draft in enumerate(drafts[1:] * 3):
            request = self.admit(self.sequence(draft), (b"other", bytes([number])))
            if request is not None:
                self.run(request, "finish")
        full = all(allocator.n_free <= 2 for allocator in self.world.host.allocators.values())
        if hold:
            self.tiered.script.hold_back()
        asked = self.ask([*prompt, 1], extra_key)
        if not isinstance(asked, Waiting):
            if asked is not None:
                self.run(asked, "finish")
            return
        self.events["load under pressure"] += full
        self.tiered.verify()
        self.tiered.settle()
        request = self.resume(asked)
        if request is not None:
            self.run(request, "finish")

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, left=st.sampled_from([0, 0, 1, 3]))
    def load_with_little_room(self, draft: Draft, extra_key: ExtraKey, left: int) -> None:
        """All but a few pages are in use by running requests."""
        prompt = self.sequence(draft)
        self.put_in_host(prompt, extra_key)
        taken = {name: self.world.alloc(name, max(0, a.n_free - left)) for name, a in self.world.host.allocators.items()}
        asked = self.ask([*prompt, 1], extra_key)
        self.tiered.verify()
        for name, indices in taken.items():
            assert indices is not None
            self.world.free(name, indices)
        self.tiered.settle()
        request = self.resume(asked) if isinstance(asked, Waiting) else asked
        if request is not None:
            self.run(request, "finish")

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, n=st.integers(1, 20), tier=st.sampled_from(["device", "host"]))
    def load_with_an_old_match(self, draft: Draft, extra_key: ExtraKey, n: int, tier: str) -> None:
        prompt = self.sequence(draft)
        match = self.put_in_host(prompt, extra_key)
        for name in self.world.host.geometries:
            self.world.evict(name, n) if tier == "device" else self.tiered.evict_host(name, n)
        load = self.tiered.load(match)
        if isinstance(load, Load):
            self.tiered.settle()
            held = self.tiered.claim(load)
            if held is not None:
                self.world.unlock(held)

    # copies under way

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, cut=SOME, more=TAILS, fates=_fates, again=st.booleans())
    def evict_under_a_write(
        self, draft: Draft, extra_key: ExtraKey, cut: int, more: tuple[list[int], list[int]], fates: list[bool], again: bool
    ) -> None:
        """Copies out are held back; what they read is cut, evicted and computed again; then they end, well or not."""
        script, prompt = self.tiered.script, [*self.sequence(draft), *more[1]][:MAX_TOKENS]
        script.hold_back()
        script.congested = False
        script.fates.extend(fates)
        self.serve_here(prompt, extra_key)
        stem = prompt[: cut % (len(prompt) + 1)]
        self.branch(stem, [*more[0], *prompt], extra_key, "write")
        copied = sum(len(keys) for keys in self.tiered.ledger.claims.copying.values())
        for name, allocator in self.world.host.allocators.items():
            self.events["evicted under a write"] += self.world.evict(name, allocator.total) > 0 and copied > 0
        self.tiered.verify()
        if again:
            self.events["inserted again under a write"] += any(map(len, self.tiered.ledger.claims.copying.values()))
            self.branch(stem, [*more[1], *prompt], extra_key, "write")
            self.serve_here(prompt, extra_key)
        self.tiered.settle()

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, cut=SOME, more=TAILS, fates=_fates, keep=st.booleans(), host=st.booleans())
    def insert_under_a_load(
        self,
        draft: Draft,
        extra_key: ExtraKey,
        cut: int,
        more: tuple[list[int], list[int]],
        fates: list[bool],
        keep: bool,
        host: bool,
    ) -> None:
        """While a prefix is loaded, others compute part of it themselves and branch off; the waiting request may leave."""
        prompt = self.sequence(draft)
        self.put_in_host([*prompt, *more[1]][:MAX_TOKENS], extra_key)
        script = self.tiered.script
        script.hold_back()
        script.fates.extend(fates)
        asked = self.ask([*prompt, *more[1]][:MAX_TOKENS], extra_key)
        if not isinstance(asked, Waiting):
            if asked is not None:
                self.run(asked, "finish")
            return
        self.tiered.host.idle()
        self.branch(prompt[: cut % (len(prompt) + 1)], [*more[0], *prompt], extra_key, "load")
        if not keep:
            self.abandon(asked)
            if host:
                for name in self.world.host.geometries:
                    self.tiered.evict_host(name, 4)
                    self.world.evict(name, 4)
        self.events["inserted again under a load"] += not script.quiet
        self.serve_here(prompt, extra_key)
        self.tiered.settle()
        if keep and (request := self.resume(asked)) is not None:
            self.run(request, "finish")

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, unlock=st.booleans())
    def reset_under_load(self, draft: Draft, extra_key: ExtraKey, unlock: bool) -> None:
        """Copies in both directions run when everything is forgotten."""
        prompt = self.sequence(draft)
        self.put_in_host(prompt, extra_key)
        self.tiered.script.hold_back()
        asked = self.ask([*prompt, 0], extra_key)
        self.tiered.host.idle()
        if isinstance(asked, Waiting):
            self.abandon(asked)
        elif asked is not None:
            self.run(asked, "finish")
        self.serve_here(prompt[::-1], extra_key)
        if not unlock:
            return
        self.let_go()
        running = not self.tiered.script.quiet
        assert self.world.reset()
        self.events["reset under load"] += running
        self.tiered.verify()
        self.tiered.settle()

    @rule(component=SOME, n=st.integers(1, 9))
    def evict_from_host(self, component: int, n: int) -> None:
        names = list(self.world.host.geometries)
        self.tiered.evict_host(names[component % len(names)], n)

    def serve_here(self, prompt: list[int], extra_key: ExtraKey) -> None:
        """One request on what the device has, without a load."""
        request = self.admit(prompt, extra_key)
        if request is not None:
            self.run(request, "finish")


def run_tier_machine(factory: TierFactory, *, examples: int, steps: int, seed: int, shrink: bool = True) -> Counter[str]:
    """`prefix_cache_machine.run_machine` for a cache with a host tier."""
    events: Counter[str] = Counter()
    drive(lambda: TierMachine(factory, events), examples=examples, steps=steps, seed=seed, shrink=shrink)
    return events
