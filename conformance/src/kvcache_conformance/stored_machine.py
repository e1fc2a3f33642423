"""The state machine for a cache with storage: everything the tier machine does, with prefetches, persists and restarts.

Hypothesis chooses when requests to the storage end, in which order, and which fail; pages get lost and spoilt; processes end
well or are killed, and the next one begins on the same storage. Content is compared by value wherever a page is used.
"""

from collections import Counter

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvcache_conformance.machine_rules import DRAFTS, EXTRA_KEYS, SOME
from kvcache_conformance.machine_steps import MAX_TOKENS, Draft
from kvcache_conformance.prefix_cache_machine import drive
from kvcache_conformance.stored_steps import StoredFactory, StoredSteps
from kvcache_conformance.stored_world import Prefetch
from kvcache_conformance.tier_machine import SITUATIONS
from kvcache_conformance.tier_steps import Situation
from kvcache_core.contracts.tokens import ExtraKey, floor_page


class StoredMachine(StoredSteps):
    """The rules about storage."""

    @rule(
        allowed=st.sampled_from([None, None, 0, 1]),
        refusing=st.sampled_from([False, False, False, True]),
        open_=st.booleans(),
        fates=st.lists(st.booleans(), max_size=4),
        picks=st.lists(SOME, max_size=4),
    )
    def set_storage_dials(self, allowed: int | None, refusing: bool, open_: bool, fates: list[bool], picks: list[int]) -> None:
        script = self.storage
        script.allowed, script.refusing = allowed, refusing
        script.word = "open" if refusing and open_ else "ok"
        script.fates.extend(fates)
        script.picks.extend(picks)

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS)
    def queue_a_request(self, draft: Draft, extra_key: ExtraKey) -> None:
        """A prefetch that nobody waits for in particular."""
        if len(self.stored.running) < 4:
            self.tiered.prefetch(self.sequence(draft), extra_key)

    @rule(which=st.lists(SOME, min_size=1, max_size=3))
    def lose_pages(self, which: list[int]) -> None:
        self.storage.lose(which)

    # as in the tier machine: composite steps, often

    @rule(kind=SOME, s=SITUATIONS, picks=st.lists(SOME, max_size=4))
    def storage_situation(self, kind: int, s: Situation, picks: list[int]) -> None:
        self.play_storage(kind, s, picks)

    @rule(kinds=st.tuples(SOME, SOME), s=SITUATIONS, picks=st.lists(SOME, max_size=4))
    def two_storage_situations(self, kinds: tuple[int, int], s: Situation, picks: list[int]) -> None:
        for kind in kinds:
            self.play_storage(kind, s, picks)
            self.tiered.verify()

    def open(self, kind: int, s: Situation) -> None:
        self.play_storage(kind, s, [])

    def play_storage(self, kind: int, s: Situation, picks: list[int]) -> None:
        """One of the composite steps below."""
        steps = (
            self.restart,
            self.round_trip_by_storage,
            self.race_two_prefetches,
            self.change_under_a_prefetch,
            self.pages_vanish,
            self.refused_for_a_while,
            self.restart_without_a_component,
        )
        self.storage.picks.extend(picks)
        steps[kind % len(steps)](s)

    def round_trip_by_storage(self, s: Situation) -> None:
        """One prompt out of memory altogether, and back: exactly as far as the storage and half of L2 go."""
        prompt = self.whole(s)
        self.serve_whole(prompt, s.extra_key)
        if self.sizes.persist_on == "never" or s.number % 3 == 0:
            self.persist_all()
        else:
            self.restart(s._replace(flag=False))
        self.clear_memory()
        if s.flag:
            self.storage.lose([s.number])
        spoilt = s.other_flag and sum(self.storage.exchange(s.number + i, s.number // 2 - i) for i in range(5)) > 0
        if spoilt:
            found = self.storage.bad
            self.fetch(prompt, s.extra_key)
            self.events["foreign page found out"] += self.storage.bad > found
            self.clear_memory()
        expected = self.usable_from_storage(prompt, s.extra_key)
        exact = not (spoilt or self.world.held or self.world.waiting)
        self.fetch(prompt, s.extra_key)
        match = self.world.match(np.asarray(prompt, np.int32), s.extra_key)
        # A spoilt page is found out too late to ask for what a shorter prefix would need.
        got = match.result.host_len
        assert got == expected or not exact, f"storage had {expected} usable tokens, memory got {got}"
        self.events["storage round trip"] += got == floor_page(len(prompt), self.world.host.page_size) > 0
        self.serve_whole([*prompt, 1][:MAX_TOKENS], s.extra_key)

    def race_two_prefetches(self, s: Situation) -> None:
        """Two queued prompts share a prefix that only the storage has; one may be cancelled, pages may fail, in any order."""
        prefix = self.long(s)[: MAX_TOKENS - 8]
        prompts = [[*prefix, *s.tails[0]], [*prefix, *s.tails[1], 2]]
        for prompt in prompts:
            self.serve_whole(prompt, s.extra_key)
        self.persist_all()
        self.clear_memory()
        script, before = self.storage, len(self.storage.fetched)
        started = [self.tiered.prefetch(prompt, s.extra_key) for prompt in prompts]
        script.fates.extend(s.fates)
        script.allowed = 1
        for turn in range(3 + s.number % 4):
            self.tiered.turn()
            self.tiered.verify()
            if turn == s.number % 3 and s.flag and isinstance(started[0], Prefetch):
                self.stored.cancel(started[0])
        self.tiered.settle()
        self.tiered.verify()
        common = floor_page(len(prefix), self.world.host.page_size)
        spans = [each.ticket.span for each in started if isinstance(each, Prefetch)]
        fetched = script.fetched[before:]
        both = [span[0] < common <= span[1] for span in spans] == [True, True]
        self.events["prefetch joined"] += both and len(set(fetched)) == len(fetched)
        self.events["partial arrival"] += not all(s.fates)
        script.fates.clear()
        for prompt in prompts:
            self.serve_whole(prompt, s.extra_key)

    def change_under_a_prefetch(self, s: Situation) -> None:
        """While pages are on their way from the storage, the same is computed, the beginning goes, or everything is forgotten."""
        prompt = self.long(s)
        self.serve_whole(prompt, s.extra_key)
        self.persist_all()
        self.clear_memory()
        if s.number % 2:
            self.serve_here(self.stem(prompt, s), s.extra_key)
            self.tiered.settle()
        started = self.tiered.prefetch(prompt, s.extra_key)
        for _ in range(s.number % 3):
            self.tiered.turn()
        self.storage.hold_back()
        running = isinstance(started, Prefetch) and not started.ticket.done
        if s.flag:
            self.serve_here([*self.stem(prompt, s), *s.tails[0]][:MAX_TOKENS], s.extra_key)
            self.events["inserted under a prefetch"] += running
        if s.other_flag:
            for name in self.world.host.geometries:
                self.world.evict(name, 1_000)
                self.tiered.evict_host(name, 1_000)
            self.events["evicted under a prefetch"] += running
        if s.number % 5 == 0:
            self.let_go()
            assert self.world.reset()
        self.tiered.verify()
        self.tiered.settle()
        self.tiered.verify()
        self.serve_whole(prompt, s.extra_key)

    def pages_vanish(self, s: Situation) -> None:
        """The storage has said that it has them."""
        prompt = self.long(s)
        self.serve_whole(prompt, s.extra_key)
        self.persist_all()
        self.clear_memory()
        started = self.tiered.prefetch(prompt, s.extra_key)
        if isinstance(started, Prefetch):
            self.tiered.turn()
            self.events["pages gone between exists and fetch"] += self.storage.lose([s.number, s.number // 3]) > 0
        self.tiered.settle()
        self.tiered.verify()
        self.serve_whole(prompt, s.extra_key)

    def refused_for_a_while(self, s: Situation) -> None:
        """The storage takes nothing; what leaves L2 meanwhile is counted, what stays is stored later."""
        prompt, script = self.long(s), self.storage
        self.tiered.settle()
        script.refusing, script.word = True, "open" if s.flag else "ok"
        self.tiered.script.congested = False
        self.serve_here([3 + s.number, *prompt], s.extra_key)
        for name, allocator in self.world.host.allocators.items():
            self.world.evict(name, allocator.total)
        self.tiered.turn()
        self.tiered.turn()
        self.tiered.prefetch([2 + s.number, *prompt], s.extra_key)
        for name in self.world.host.geometries:
            if s.other_flag:
                self.tiered.evict_host(name, 1 + s.number % 4)
        self.tiered.persist(0.0)
        self.tiered.verify()
        script.let_all_through()
        self.persist_all()


def run_stored_machine(factory: StoredFactory, *, examples: int, steps: int, seed: int, shrink: bool = True) -> Counter[str]:
    """`prefix_cache_machine.run_machine` for a cache with storage."""
    events: Counter[str] = Counter()
    drive(lambda: StoredMachine(factory, events), examples=examples, steps=steps, seed=seed, shrink=shrink)
    return events
