"""The state machine for a cache with a host tier: everything the one-tier machine does, with copies under way, and loads.

Hypothesis chooses when copies end, in which order of directions, and which fail. The rules compose what independent calls hardly
ever line up to: two loads over one prefix, a load into a full pool, branches inside what is being copied, the same tokens
computed again while they are copied, aborts while loading, a reset under load, and a host tier smaller than the device, than a
request, or of one page.
"""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvcache_conformance.component_steps import WINDOWS, ComponentSteps, window_of
from kvcache_conformance.machine_rules import DRAFTS, EXTRA_KEYS, SOME, TAILS
from kvcache_conformance.machine_steps import MAX_RUNNING, MAX_TOKENS, Draft
from kvcache_conformance.prefix_cache_machine import drive
from kvcache_conformance.tier_steps import Situation, TierFactory, TierSizes, Waiting
from kvcache_conformance.tiered_world import Load
from kvcache_core.contracts.tokens import ExtraKey, floor_page

_fates = st.lists(st.booleans(), max_size=4)
_few = st.sampled_from([None, None, 0, 1, 2])
SITUATIONS = st.builds(
    Situation,
    drafts=st.tuples(DRAFTS, DRAFTS, DRAFTS),
    extra_key=EXTRA_KEYS,
    tails=TAILS,
    number=SOME,
    flag=st.booleans(),
    other_flag=st.booleans(),
    fates=_fates,
)


class TierMachine(ComponentSteps):
    """The rules about copies."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        room=st.integers(MAX_TOKENS, 3 * MAX_TOKENS),
        slots=st.sampled_from(["one", "few", "half", "same", "double", "plenty", "plenty"]),
        backup_on=st.sampled_from(["insert", "evict"]),
        persist_on=st.sampled_from(["evict", "insert", "evict", "insert", "never"]),
        window=st.sampled_from(WINDOWS),
        pages_between=st.integers(0, 3),
        share=st.sampled_from([1, 1, 2]),
        kinds=st.tuples(SOME, SOME),
        s=SITUATIONS,
    )
    def choose_pools(
        self,
        page_size: int,
        room: int,
        slots: str,
        backup_on: str,
        persist_on: str,
        window: str,
        pages_between: int,
        share: int,
        kinds: tuple[int, int],
        s: Situation,
    ) -> None:
        """`persist_on` is for worlds with a storage, `window` and the two after it for those with windows or states. Every
        example opens with two situations, for hypothesis may leave out the rules that make them."""
        pages = room // page_size
        sizes = {"one": 1, "few": 3, "half": max(1, pages // 2), "same": pages, "double": 2 * pages, "plenty": 8 * pages}
        others = (window_of(window, page_size), pages_between * page_size, share)
        self.begin(TierSizes(page_size, pages, sizes[slots], backup_on, persist_on, *others))
        for kind in kinds:
            self.open(kind, s)
            self.tiered.verify()

    @invariant()
    def tiers_are_right(self) -> None:
        if self._tiered is not None:
            self._tiered.verify()

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

    @rule(kind=SOME, s=SITUATIONS)
    def situation(self, kind: int, s: Situation) -> None:
        self.play(kind, s)

    @rule(kind=SOME, s=SITUATIONS)
    def second_situation(self, kind: int, s: Situation) -> None:
        self.play(kind, s)

    @rule(kinds=st.tuples(SOME, SOME), s=SITUATIONS)
    def two_situations(self, kinds: tuple[int, int], s: Situation) -> None:
        """The second meets the same prefixes as the first."""
        for kind in kinds:
            self.play(kind, s)
            self.tiered.verify()

    def open(self, kind: int, s: Situation) -> None:
        """One step at the beginning of an example."""
        self.play(kind, s)

    def play(self, kind: int, s: Situation) -> None:
        """One of the composite steps below, or of those about single components."""
        steps = [
            self.round_trip,
            self.race_two_loads,
            self.load_under_pressure,
            self.load_with_little_room,
            self.load_with_an_old_match,
            self.evict_under_a_write,
            self.insert_under_a_load,
            self.reset_under_load,
        ]
        if list(self.world.host.geometries) != ["full"]:
            steps += [self.lose_one_component, self.host_loses_one_component, self.fail_one_component]
        steps[kind % len(steps)](s)

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
        full = False
        for number, draft in enumerate(s.drafts[1:] * 3):
            if full:
                break
            request = self.admit((self.sequence(draft) * MAX_TOKENS)[:MAX_TOKENS], (b"other", bytes([number])))
            if request is not None:
                self.run(request, "finish")
            full = any(allocator.n_free <= 2 for allocator in self.world.host.allocators.values())
        if s.flag:
            self.tiered.script.hold_back()
        asked = self.ask([*prompt, 1], s.extra_key)
        self.events["load under pressure"] += full and isinstance(asked, Waiting)
        self.tiered.verify()
        self.tiered.settle()
        request = self.resume(asked) if isinstance(asked, Waiting) else asked
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
        """Since the match the tiers lost something, or everything, or the device got it otherwise and lost it again."""
        prompt = self.long(s)
        match = self.put_in_host(prompt, s.extra_key)
        if s.flag:
            self.serve_here(prompt, s.extra_key)
        n = s.number if s.other_flag else 1_000
        for name in self.world.host.geometries:
            self.tiered.evict_host(name, n)
            self.world.evict(name, n)
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


def run_tier_machine(factory: TierFactory, *, examples: int, steps: int, seed: int, shrink: bool = True) -> Counter[str]:
    """`prefix_cache_machine.run_machine` for a cache with a host tier."""
    events: Counter[str] = Counter()
    drive(lambda: TierMachine(factory, events), examples=examples, steps=steps, seed=seed, shrink=shrink)
    return events
