"""Composite steps of `TierMachine` around copies: two loads over one prefix, a load into a full pool, branches inside what is
being copied, the same tokens computed again while they are copied, aborts while loading, a reset under load.

It knows no rule and draws nothing.
"""

from kvcache_conformance.component_steps import ComponentSteps
from kvcache_conformance.machine_steps import MAX_TOKENS
from kvcache_conformance.tier_steps import Situation, Waiting
from kvcache_conformance.tiered_world import Load
from kvcache_core.contracts.tokens import floor_page


class CopySteps(ComponentSteps):
    """For any set of components, in both directions."""

    # loads

    def round_trip(self, s: Situation) -> None:
        """Out of device memory and back."""
        prompt = self.sequence(s.drafts[0])
        self.put_in_host(prompt, s.extra_key)
        request = self.serve_whole([*prompt, s.number % 3][: MAX_TOKENS + 1], s.extra_key)
        whole = floor_page(len(prompt), self.world.host.page_size)
        self.events["round trip"] += request is not None and request.hits >= whole > 0

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
