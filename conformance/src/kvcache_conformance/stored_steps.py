"""The steps from which the rules of `StoredMachine` are composed: the storage's side of a world, its end and its beginning.

It knows no rule and draws nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from kvcache_conformance.machine_steps import MAX_TOKENS
from kvcache_conformance.reference_model import TOKEN_BYTES
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.stored_world import StoredWorld
from kvcache_conformance.tier_machine import TierMachine
from kvcache_conformance.tier_steps import Situation, TierSizes
from kvcache_conformance.tiered_world import TieredWorld
from kvcache_core.contracts.tokens import ExtraKey, floor_page

STORED_EVENTS = (
    "prefetches",
    "prefetch that delivered",
    "prefetch that delivered nothing",
    "prefetch cancelled",
    "prefetch refused: UNAVAILABLE",
    "prefetch refused: BUSY",
    "prefetch refused: NOTHING_TO_DO",
    "prefetch joined",
    "partial arrival",
    "pages gone between exists and fetch",
    "foreign page found out",
    "storage round trip",
    "reset under a prefetch",
    "inserted under a prefetch",
    "evicted under a prefetch",
    "left L2 for L3",
    "left L2, dropped",
    "persisted all",
    "persisted a part",
    "restarted",
    "killed",
)
"""Situations that a run must have reached, beside those of the tier machine."""


def stored_component_events(names: Sequence[str]) -> list[str]:
    """The same for each component of a set: the storage had everything but that."""
    return [f"restarted, {name} missing" for name in names]


StoredFactory = Callable[[TierSizes, StorageScript], TieredWorld]


class StoredSteps(TierMachine):
    """One storage, which outlives the caches over it."""

    def __init__(self, factory: StoredFactory, events: Counter[str]) -> None:
        self.storage = StorageScript()
        super().__init__(lambda sizes: factory(sizes, self.storage), events)

    @property
    def stored(self) -> StoredWorld:
        assert self.tiered.stored is not None
        return self.tiered.stored

    def persist_all(self) -> None:
        self.tiered.settle()
        self.storage.fates.clear()
        self.tiered.script.fates.clear()
        self.tiered.script.congested = False
        self.tiered.persist(5.0)

    def restart(self, s: Situation) -> None:
        """The process ends: it closes the cache, or is killed in the middle of everything. The next one has the storage alone."""
        self.let_go()
        killed = s.flag and s.other_flag
        if not killed:
            self.persist_all()
            self.tiered.cache.close()
            assert self.storage.closed
        self.events["killed" if killed else "restarted"] += 1
        self.collect()
        self.matches.clear()
        self.begin(self.sizes)
        self.storage.let_all_through()

    def collect(self) -> None:
        """Before a world goes: what it counted."""
        self.events.update(self.tiered.ledger.events)
        self.events.update(self.stored.events)

    def drain(self) -> None:
        self.tiered.drain()
        self.collect()

    def clear_memory(self) -> None:
        """Both tiers, except what is locked."""
        self.tiered.settle()
        for name, allocator in self.world.host.allocators.items():
            self.world.evict(name, allocator.total)
        self.tiered.settle()
        for name in self.world.host.geometries:
            self.tiered.evict_host(name, 10_000)
        self.tiered.settle()

    def fetch(self, prompt: list[int], extra_key: ExtraKey) -> None:
        """A prefetch and its end."""
        self.storage.fates.clear()
        self.storage.let_all_through()
        self.tiered.prefetch(prompt, extra_key)
        self.tiered.settle()
        self.tiered.verify()

    def usable_from_storage(self, prompt: list[int], extra_key: ExtraKey) -> int:
        """What an empty memory could get of a prompt now."""
        model, host = self.world.model, self.world.host
        halves = {name: self.tiered.cache.size(name, "host").total // 2 for name in host.geometries}
        whole = np.asarray(prompt[: floor_page(len(prompt), host.page_size)], np.int32).tobytes()
        return self.stored.expected(whole, extra_key, model, halves)

    def restart_without_a_component(self, s: Situation) -> None:
        """A new process finds a prompt's pages of one component missing, some or all, or the newest state: the usable prefix is
        what all components have. What was missing is computed and stored again."""
        page = self.world.host.page_size
        prompt, names = self.whole(s), list(self.world.host.geometries)
        self.serve_whole(prompt, s.extra_key)
        self.restart(s._replace(flag=False))
        name = names[len(s.tails[0]) % len(names)]
        before = self.usable_from_storage(prompt, s.extra_key)
        ids = np.asarray(prompt, np.int32).tobytes()
        ends = range(page, len(prompt) + 1, page)
        lost = [end for i, end in enumerate(reversed(ends)) if s.flag or i == s.number % 3]
        self.stored.lose(name, s.extra_key, [ids[: end * TOKEN_BYTES] for end in lost])
        expected = self.usable_from_storage(prompt, s.extra_key)
        self.fetch(prompt, s.extra_key)
        got = self.world.match(np.asarray(prompt, np.int32), s.extra_key).result.host_len
        assert got == expected, f"without {lost} of {name!r} storage had {expected} usable tokens, memory got {got}"
        self.events[f"restarted, {name} missing"] += expected < before
        self.serve_whole([*prompt, 1][:MAX_TOKENS], s.extra_key)
        if expected < before and self.sizes.persist_on != "never":
            self.persist_all()
            after = self.usable_from_storage(prompt, s.extra_key)
            self.events[f"{name} stored again"] += after >= before
