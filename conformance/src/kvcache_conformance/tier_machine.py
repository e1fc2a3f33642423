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


class Situation(NamedTuple):
    """What hypothesis chooses for one composite step; each uses what it needs."""

    drafts: tuple[Draft, Draft, Draft]
    extra_key: ExtraKey
    tails: tuple[list[int], list[int]]
    number: int
    flag: bool
    other_flag: bool
    fates: list[bool]


KINDS = (
    "round_trip",
    "race_two_loads",
    "load_under_pressure",
    "load_with_little_room",
    "load_with_an_old_match",
    "evict_under_a_write",
    "insert_under_a_load",
    "reset_under_load",
)
"""The composite steps, methods of `TierMachine`."""

_fates = st.lists(st.booleans(), max_size=4)
_few = st.sampled_from([None, None, 0, 1, 2])
_situations = st.builds(
    Situation,
    drafts=st.tuples(DRAFTS, DRAFTS, DRAFTS),
    extra_key=EXTRA_KEYS,
    tails=TAILS,
    number=SOME,
    flag=st.booleans(),
    other_flag=st.booleans(),
    fates=_fates,
)


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

    # hypothesis takes some rules out of each example and rarely lines up the others: these come often, in three rules

    @rule(kind=st.sampled_from(KINDS), s=_situations)
    def situation(self, kind: str, s: Situation) -> None:
        self.play(kind, s)

    @rule(kind=st.sampled_from(KINDS), s=_situations)
    def second_situation(self, kind: str, s: Situation) -> None:
        self.play(kind, s)

    @rule(kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)), s=_situations)
    def two_situations(self, kinds: tuple[str, str], s: Situation) -> None:
        """The second meets the same prefixes as the first."""
        for kind in kinds:
            self.play(kind, s)
            self.tiered.verify()

    def play(self, kind: str, s: Situation) -> None:
        """One of KINDS."""
        steps: dict[str, Callable[[Situation], None]] = {
            "round_trip": self.round_trip,
            "race_two_loads": self.race_two_loads,
            "load_under_pressure": self.load_under_pressure,
            "load_with_little_room": self.load_with_little_room,
            "load_with_an_old_match": self.load_with_an_old_match,
            "evict_under_a_write": self.evict_under_a_write,
            "insert_under_a_load": self.insert_under_a_load,
            "reset_under_load": self.reset_under_load,
        }
        steps[kind](s)

    # loads

    def round_trip(self, s: Situation) -> None:
        """Out of device memory and back."""
        prompt = self.sequence(s.drafts[0])
        self.put_in_host(prompt, s.extra_key)
        request = self.serve_whole([*prompt, s.number % 3][: MAX_TOKENS + 1], s.extra_key)
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

    def race_two_loads(self, s: Situation) -> None:
        """Two requests load one prefix, the second from farther on; one may leave, copies may fail."""
        prefix = self.sequence(s.drafts[0])
        self.put_in_host([*prefix, *s.tails[1]][:MAX_TOKENS], s.extra_key)
        self.tiered.script.hold_back()
        self.tiered.script.fates.extend(s.fates)
        asked = [self.ask(tokens[:MAX_TOKENS], s.extra_key) for tokens in ([*prefix, *s.tails[0]], [*prefix, *s.tails[1], 0])]
        self.world.verify()
        if s.flag:
            self.tiered.host.idle()
        leaver = s.number % 4
        if leaver < len(asked) and isinstance(left := asked[leaver], Waiting):
            asked[leaver] = None
            self.abandon(left)
            self.tiered.verify()
        if s.other_flag:
            for name, allocator in self.world.host.allocators.items():
                self.world.evict(name, allocator.total)
        self.tiered.settle()
        for each in asked:
            request = self.resume(each) if isinstance(each, Waiting) else each
            if request is not None:
                self.run(request, "finish")

    def load_under_pressure(self, s: Situation) -> None:
        """The device is full but evictable; the evicted want room in the host, where the prefix is that is being loaded."""
        prompt = self.sequence(s.drafts[0])
        self.put_in_host(prompt, s.extra_key)
        for number, draft in enumerate(s.drafts[1:] * 3):
            request = self.admit((self.sequence(draft) * MAX_TOKENS)[:MAX_TOKENS], (b"other", bytes([number])))
            if request is not None:
                self.run(request, "finish")
        full = any(allocator.n_free <= 2 for allocator in self.world.host.allocators.values())
        if s.flag:
            self.tiered.script.hold_back()
        asked = self.ask([*prompt, 1], s.extra_key)
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

    def load_with_little_room(self, s: Situation) -> None:
        """All but a few pages are in use by running requests: none, then some of it is loaded."""
        prompt = self.long(s)
        for left in (0, 1 + s.number % 3):
            self.put_in_host(prompt, s.extra_key)
            room = {name: max(0, allocator.n_free - left) for name, allocator in self.world.host.allocators.items()}
            taken = {name: self.world.alloc(name, n) for name, n in room.items()}
            asked = self.ask([*prompt, 1], s.extra_key)
            self.tiered.verify()
            for name, indices in taken.items():
                assert indices is not None
                self.world.free(name, indices)
            self.tiered.settle()
            request = self.resume(asked) if isinstance(asked, Waiting) else asked
            if request is not None:
                self.run(request, "finish")

    def load_with_an_old_match(self, s: Situation) -> None:
        prompt = self.sequence(s.drafts[0])
        match = self.put_in_host(prompt, s.extra_key)
        for name in self.world.host.geometries:
            self.world.evict(name, s.number % 20 + 1) if s.flag else self.tiered.evict_host(name, s.number % 20 + 1)
        load = self.tiered.load(match)
        if isinstance(load, Load):
            self.tiered.settle()
            held = self.tiered.claim(load)
            if held is not None:
                self.world.unlock(held)

    # copies under way

    def evict_under_a_write(self, s: Situation) -> None:
        """Copies out are held back; what they read is cut, evicted and computed again; then they end, well or not."""
        script, prompt = self.tiered.script, [3 + s.number, *self.long(s)]
        script.hold_back()
        script.congested = False
        script.fates.extend(s.fates)
        self.serve_here(prompt, s.extra_key)
        stem = self.stem(prompt, s)
        self.branch(stem, [*s.tails[0], *prompt], s.extra_key, "write")
        copied = sum(len(keys) for keys in self.tiered.ledger.claims.copying.values())
        for name, allocator in self.world.host.allocators.items():
            self.events["evicted under a write"] += self.world.evict(name, allocator.total) > 0 and copied > 0
        self.tiered.verify()
        if s.flag:
            self.events["inserted again under a write"] += any(map(len, self.tiered.ledger.claims.copying.values()))
            self.branch(stem, [*s.tails[1], *prompt], s.extra_key, "write")
            self.serve_here(prompt, s.extra_key)
        self.tiered.settle()

    def insert_under_a_load(self, s: Situation) -> None:
        """While a prefix is loaded, others compute part of it themselves and branch off; the waiting request may leave."""
        prompt = self.long(s)
        self.put_in_host([*prompt, *s.tails[1]][:MAX_TOKENS], s.extra_key)
        script = self.tiered.script
        script.hold_back()
        script.fates.extend(s.fates)
        asked = self.ask([*prompt, *s.tails[1]][:MAX_TOKENS], s.extra_key)
        if not isinstance(asked, Waiting):
            if asked is not None:
                self.run(asked, "finish")
            return
        self.tiered.host.idle()
        self.branch(self.stem(prompt, s), [*s.tails[0], *prompt], s.extra_key, "load")
        if s.flag:
            self.abandon(asked)
            if s.other_flag:
                for name in self.world.host.geometries:
                    self.tiered.evict_host(name, 4)
                    self.world.evict(name, 4)
        self.events["inserted again under a load"] += not script.quiet
        self.serve_here(prompt, s.extra_key)
        self.tiered.settle()
        if not s.flag and (request := self.resume(asked)) is not None:
            self.run(request, "finish")

    def reset_under_load(self, s: Situation) -> None:
        """Copies in both directions run when everything is forgotten."""
        prompt = self.sequence(s.drafts[0])
        self.put_in_host(prompt, s.extra_key)
        self.tiered.script.hold_back()
        asked = self.ask([*prompt, 0], s.extra_key)
        self.tiered.host.idle()
        if isinstance(asked, Waiting):
            self.abandon(asked)
        elif asked is not None:
            self.run(asked, "finish")
        self.serve_here(prompt[::-1], s.extra_key)
        if not s.flag:
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

    def long(self, s: Situation) -> list[int]:
        """A prompt of several pages, whatever the page size."""
        return (self.sequence(s.drafts[0]) * MAX_TOKENS)[: MAX_TOKENS - 6]

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


def run_tier_machine(factory: TierFactory, *, examples: int, steps: int, seed: int, shrink: bool = True) -> Counter[str]:
    """`prefix_cache_machine.run_machine` for a cache with a host tier."""
    events: Counter[str] = Counter()
    drive(lambda: TierMachine(factory, events), examples=examples, steps=steps, seed=seed, shrink=shrink)
    return events
