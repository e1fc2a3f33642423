"""The state machine for a cache with a host tier: everything the one-tier machine does, with copies under way, and loads.

Hypothesis chooses when copies end, in which order of directions, and which fail, and it composes the steps of `copy_steps` and
`component_steps`, to which independent calls hardly ever line up. A host tier may be smaller than the device, than a request, or
of one page.
"""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvcache_conformance.component_steps import WINDOWS, window_of
from kvcache_conformance.copy_steps import CopySteps
from kvcache_conformance.machine_rules import DRAFTS, EXTRA_KEYS, SOME, TAILS
from kvcache_conformance.machine_steps import MAX_RUNNING, MAX_TOKENS, Draft
from kvcache_conformance.prefix_cache_machine import drive
from kvcache_conformance.tier_steps import Situation, TierFactory, TierSizes, Waiting
from kvcache_core.contracts.tokens import ExtraKey

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


class TierMachine(CopySteps):
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
        """One of the composite steps about copies, or of those about single components."""
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
        if self.names != ["full"]:
            steps += [self.lose_one_component, self.host_loses_one_component, self.fail_one_component]
        if len(self.names) > 1 and "full" in self.names:
            steps.append(self.lose_what_others_stand_on)
        steps[kind % len(steps)](s)

    # loads

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

    # eviction

    @rule(component=SOME, n=st.integers(1, 9))
    def evict_from_host(self, component: int, n: int) -> None:
        names = list(self.world.host.geometries)
        self.tiered.evict_host(names[component % len(names)], n)


def run_tier_machine(factory: TierFactory, *, examples: int, steps: int, seed: int, shrink: bool = True) -> Counter[str]:
    """`prefix_cache_machine.run_machine` for a cache with a host tier."""
    events: Counter[str] = Counter()
    drive(lambda: TierMachine(factory, events), examples=examples, steps=steps, seed=seed, shrink=shrink)
    return events
