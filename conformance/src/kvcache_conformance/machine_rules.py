"""The rules of the state machines that drive caches as schedulers do: whole requests, races, branches, evictions, stale matches.

They are composed of `machine_steps` and count the situations they reach. They do not know how many tiers there are.
"""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvcache_conformance.machine_steps import MAX_RUNNING, MAX_TOKENS, RARELY, Draft, MachineSteps
from kvcache_core.contracts.tokens import ExtraKey, floor_page

_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)
TAILS = st.tuples(_tokens, _tokens)
DRAFTS = st.tuples(st.integers(0, 99), st.integers(0, MAX_TOKENS), _tokens)
EXTRA_KEYS = st.sampled_from([(), (), (), (b"",), (b"a", b"b"), (b"ab",)])
_chunk = st.integers(1, 9)
_chunks = st.tuples(_chunk, _chunk)
SOME = st.integers(0, 99)
_fate = st.sampled_from(["finish", "finish", "abort", "preempt"])


class MachineRules(MachineSteps):
    """The rules of every machine; a machine adds how a world is built."""

    # whole requests

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, chunk=_chunk, answer=st.integers(0, 5), fate=_fate, stop=st.integers(1, 6))
    def serve(self, draft: Draft, extra_key: ExtraKey, chunk: int, answer: int, fate: str, stop: int) -> None:
        """One request from its admission to its end, which may come in the middle of its chunks."""
        request = self.admit(self.sequence(draft), extra_key)
        if request is None:
            return
        chunks = 0
        while request.to_compute and self.chunk(request, chunk):
            chunks += 1
            self.world.verify()
            if fate == "abort" and chunks == stop:
                break
        for token in range(answer):
            if request.to_compute or not self.decode(request, token % 3):
                break
        self.end_request(request, fate)

    @precondition(lambda self: len(self.requests) < MAX_RUNNING)
    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, chunk=_chunk)
    def start(self, draft: Draft, extra_key: ExtraKey, chunk: int) -> None:
        request = self.admit(self.sequence(draft), extra_key)
        if request is not None:
            self.requests.append(request)
            self.chunk(request, chunk)

    @precondition(lambda self: self.requests)
    @rule(which=SOME, chunk=_chunk, token=st.integers(0, 2))
    def advance(self, which: int, chunk: int, token: int) -> None:
        request = self.requests[which % len(self.requests)]
        if request.to_compute:
            self.chunk(request, chunk)
        elif len(request.tokens) < MAX_TOKENS:
            self.decode(request, token)

    @precondition(lambda self: self.requests)
    @rule(which=SOME, fate=_fate)
    def end(self, which: int, fate: str) -> None:
        self.end_request(self.requests.pop(which % len(self.requests)), fate)

    @rule(draft=DRAFTS, extra_key=EXTRA_KEYS, tails=TAILS, chunks=_chunks, last=_fate, late=st.booleans())
    def race(
        self,
        draft: Draft,
        extra_key: ExtraKey,
        tails: tuple[list[int], list[int]],
        chunks: tuple[int, int],
        last: str,
        late: bool,
    ) -> None:
        """Two requests over one prefix, both admitted before either has computed anything. `late`: nothing is offered before the
        end, so that the second meets whole edges of the first."""
        prefix = self.sequence(draft)
        racers = [self.admit([*prefix, *tail][:MAX_TOKENS], extra_key) for tail in tails]
        running = [request for request in racers if request is not None]
        going = True
        while going:
            going = False
            for request, chunk in zip(running, chunks, strict=False):
                going |= bool(request.to_compute) and self.chunk(request, chunk, offer=not late)
        for request, fate in zip(running, ("finish", last), strict=False):
            self.end_request(request, fate)
        self.events["race with duplicates"] += any(request.duplicates for request in running)

    @rule(drafts=st.tuples(DRAFTS, DRAFTS, DRAFTS), extra_key=EXTRA_KEYS, n=st.integers(1, 30), token=st.integers(0, 2))
    def evict_and_insert_while_another_decodes(
        self, drafts: tuple[Draft, Draft, Draft], extra_key: ExtraKey, n: int, token: int
    ) -> None:
        """One request decodes, a second ends, its pages are evicted, a third writes them; the first reads what it read before."""
        decoding = next((request for request in self.requests if not request.to_compute), None)
        if decoding is None:
            decoding = self.admit(self.sequence(drafts[0]), ())
            if decoding is None:
                return
            self.requests.append(decoding)
            self.prefill(decoding)
        for held in self.locks:
            self.world.unlock(held)
        self.locks.clear()
        for draft in drafts[1:]:
            other = self.admit(self.sequence(draft), extra_key)
            if other is not None:
                self.prefill(other)
                self.end_request(other, "finish")
            if len(decoding.tokens) < MAX_TOKENS:
                self.decode(decoding, token)
            for component in self.world.host.geometries:
                if self.world.evict(component, n):
                    self.events["evicted while another decodes"] += 1
            self.world.verify()

    # locks and matches

    @precondition(lambda self: len(self.locks) < MAX_RUNNING)
    @rule(which=SOME, cut=SOME)
    def hold(self, which: int, cut: int) -> None:
        """A lock on some prefix of something known, kept for a while."""
        match = self.world.match(np.asarray(self.known[which % len(self.known)], np.int32))
        pages = match.result.device_len // self.world.host.page_size
        length = cut % (pages + 1) * self.world.host.page_size
        held = self.world.lock(match, length)
        if held is not None:
            self.locks.append(held)

    @precondition(lambda self: self.locks)
    @rule(which=SOME)
    def release(self, which: int) -> None:
        self.world.unlock(self.locks.pop(which % len(self.locks)))

    @precondition(lambda self: any(self.early(held) for held in self.locks))
    @rule()
    def release_early(self) -> None:
        held = next(held for held in self.locks if self.early(held))
        self.world.unlock(held, self.early(held)[0])
        self.events["released early"] += 1

    @rule(draft=DRAFTS, cut=SOME, more=_tokens, keep=st.booleans())
    def branch_inside_a_lock(self, draft: Draft, cut: int, more: list[int], keep: bool) -> None:
        """A request leaves a locked prefix at some position, then memory runs short; the lock goes on delivering its pages."""
        first = self.admit(self.sequence(draft), ())
        if first is None:
            return
        self.prefill(first)
        self.end_request(first, "finish")
        match = self.world.match(np.asarray(first.tokens, np.int32))
        held = self.world.lock(match)
        assert held is not None
        stem = first.tokens[: cut % (held.length + 1)]
        partial = self.world.lock(match, floor_page(len(stem), self.world.host.page_size))
        if partial is not None:
            self.events["partial lock"] += 0 < partial.length < held.length
            self.locks.append(partial)
        branch = self.admit([*stem, *more][:MAX_TOKENS], ())
        if branch is not None:
            self.prefill(branch)
            page = self.world.host.page_size
            self.events["branch inside a lock"] += page <= len(stem) < held.length and branch.computed >= len(stem) + page
            self.end_request(branch, "finish")
        for name, allocator in self.world.host.allocators.items():
            self.world.evict(name, allocator.total)
        self.world.verify()
        if keep and len(self.locks) < MAX_RUNNING:
            self.locks.append(held)
        else:
            self.world.unlock(held)

    @rule(which=SOME, extra_key=EXTRA_KEYS)
    def look(self, which: int, extra_key: ExtraKey) -> None:
        """A match that is used later, if at all."""
        match = self.world.match(np.asarray(self.known[which % len(self.known)], np.int32), extra_key)
        self.matches = [*self.matches[-3:], match]

    @precondition(lambda self: self.matches)
    @rule(which=SOME)
    def use_an_old_match(self, which: int) -> None:
        self.try_lock(self.matches[which % len(self.matches)])

    @rule(draft=DRAFTS, n=st.integers(1, 30), component=SOME)
    def evict_between_match_and_lock(self, draft: Draft, n: int, component: int) -> None:
        request = self.admit(self.sequence(draft), ())
        if request is None:
            return
        self.prefill(request)
        self.end_request(request, "finish")
        match = self.world.match(np.asarray(request.tokens, np.int32))
        self.evict(component, n)
        self.try_lock(match)

    # eviction

    @rule(component=SOME, n=st.integers(1, 9))
    def evict(self, component: int, n: int) -> None:
        names = list(self.world.host.geometries)
        name = names[component % len(names)]
        locked = bool(self.world.locked(name))
        freed = self.world.evict(name, n)
        self.events["evicted"] += freed > 0
        self.events["evicted under locks"] += freed > 0 and locked
        self.events["everything pinned"] += freed == 0 and locked

    @rule(dice=st.integers(0, RARELY))
    def reset(self, dice: int) -> None:
        """Mostly under locks: what can happen next in an empty cache is little."""
        if self.world.held:
            assert not self.world.reset()
            self.events["reset refused"] += 1
        if dice == RARELY:
            self.let_go()
            assert self.world.reset()
            self.events["reset"] += 1
