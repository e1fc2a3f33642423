"""A cache between a model and a ledger: every call is predicted, and its result, ownership and content are compared.

The ledger is the allocators' own journal, the content is read from device memory, and what should be known comes from
`PrefixModel`; the cache's own account (`size`, `check_integrity`) is judged, never trusted. What a host tier adds is in
`tier_ledger` and `tiered_world`.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import final

import numpy as np

from kvcache_conformance.checks import check_account, check_content, check_offer, copies_of, ends_of, longest_run
from kvcache_conformance.claims import Held, Match, require
from kvcache_conformance.component_events import ComponentEvents
from kvcache_conformance.freed_pages import FreedPages
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.lru_simulator import LruSimulator
from kvcache_conformance.page_content import page_content
from kvcache_conformance.reference_model import TOKEN_BYTES, PageKey, PrefixModel
from kvcache_conformance.tier_ledger import TierLedger
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.results import Indices, InsertResult, Segment, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds, as_token_ids, floor_page

POISON = -7
"""Written into every array after it was handed to the cache, or handed out by it: a kept view shows at once."""


@final
class CheckedCache:
    """`reuses_prefixes`: whether the cache keeps anything; `lru`: whether its eviction order must be the simulator's (decidable
    for full attention alone); `ledger`: of the host tier, where there is one. All methods raise Violation when the cache breaks
    its contract."""

    def __init__(
        self,
        cache: BasePrefixCache,
        host: HostModel,
        *,
        reuses_prefixes: bool = True,
        lru: bool = True,
        ledger: TierLedger | None = None,
    ) -> None:
        self.cache = cache
        self.host = host
        self.model = PrefixModel(host.page_size, host.geometries)
        self.held: set[Held] = set()
        self.waiting: set[Held] = set()
        """Locks of loads: what they cover is not all on the device yet."""
        self.request_owned: dict[str, set[int]] = {name: set() for name in host.geometries}
        self._reuses = reuses_prefixes
        only_closed = all(geometry.prefix_closed for geometry in host.geometries.values())
        self._simulator = LruSimulator(host.page_size) if lru and reuses_prefixes and only_closed else None
        self._ledger = ledger
        self.component_events = ComponentEvents(self.model, Counter() if ledger is None else ledger.events)
        self._freed = FreedPages(host, self.model, ledger)

    @property
    def losses(self) -> int:
        """How many calls lost data: a match that is older than the last may be stale."""
        return self._freed.losses

    # what a host does without the cache

    def alloc(self, component: str, n: int) -> Indices | None:
        """Pages for a request, straight from the allocator."""
        indices = self.host.allocators[component].alloc(n)
        if indices is not None:
            self.request_owned[component].update(indices.tolist())
        return indices

    def free(self, component: str, indices: Indices) -> None:
        """A request gives back what it owns."""
        mine: list[int] = indices.tolist()
        assert self.request_owned[component].issuperset(mine), f"the test frees {mine}, which no request owns"
        self.host.allocators[component].free(indices)
        self.request_owned[component].difference_update(mine)

    def write(self, component: str, index: int, extra_key: ExtraKey, prefix: bytes) -> None:
        """A forward that computes one page of a request, up to the end of `prefix`."""
        assert index in self.request_owned[component], f"the test writes page {index}, which no request owns"
        self.host.write(component, index, page_content(extra_key, component, prefix))

    # the cache's methods

    def match(self, ids: TokenIds, extra_key: ExtraKey = ()) -> Match:
        """`match_prefix`, which must find exactly what the model has and change nothing."""
        view = as_token_ids(ids).copy()
        tokens = view.tobytes()
        before = self._sizes()
        self.forget_journals()
        result = self.cache.match_prefix(view, extra_key)
        view.fill(POISON)
        require(not self._moved(), "match_prefix allocated or freed")
        require(before == self._sizes(), "match_prefix changed the sizes")
        device, host, matched = result.device_len, result.host_len, result.matched_len
        usable = self.model.longest_usable(extra_key, tokens)
        require(device == usable, f"match_prefix found {device} tokens, {usable} are usable")
        lengths = f"device_len {device}, host_len {host}, matched_len {matched} of {len(view)} tokens"
        require(0 <= device <= host <= matched <= len(view), f"lengths out of order: {lengths}")
        if self._ledger is not None:
            usable = self.model.longest_usable(extra_key, tokens, self._ledger.ends(extra_key, tokens))
            require(host == usable, f"match_prefix found {host} tokens in both tiers, {usable} are usable")
        self.component_events.matched(extra_key, tokens, device, matched)
        return Match(result, tokens, extra_key, self.losses)

    def lock(self, match: Match, length: int | None = None) -> Held | None:
        """`lock_ref`. None is right only where the length is not usable, or data went since the match."""
        wanted = match.result.device_len if length is None else length
        self.forget_journals()
        lock = self.cache.lock_ref(match.result, length)
        require(not self._moved(), "lock_ref allocated or freed")
        usable = self.model.is_usable(match.extra_key, match.tokens, wanted)
        if lock is None:
            require(wanted > 0, "length 0 is always lockable")
            require(not usable or match.losses != self.losses, f"lock_ref gave None although all {wanted} tokens are there")
            return None
        require(lock.length == wanted, f"a lock of {wanted} tokens was asked, it covers {lock.length}")
        require(usable, f"lock_ref locked {wanted} tokens, not all of which are there")
        held = Held(lock, match.tokens, match.extra_key, wanted, set(self.host.geometries))
        self.held.add(held)
        if self._simulator is not None:
            self._simulator.use(match.extra_key, match.tokens, wanted)
        for component in self.host.geometries:
            self.segment(held, component)
        return held

    def segment(self, held: Held, component: str) -> Segment:
        """What a lock delivers, checked by index, by shape and by content. The result is a private copy."""
        given = held.lock.segment(component)
        ends = list(self.model.needed_ends(component, held.length))
        expected = [self.model.index_at(component, held.extra_key, held.tokens, end) for end in ends]
        indices = given.indices.copy()
        about = f"segment [{given.start}, {given.end}) of {component!r} in a lock of {held.length} tokens"
        require(indices.dtype == np.int32 and indices.ndim == 1, f"{about}: indices are not one-dimensional int32")
        require(indices.tolist() == expected, f"{about} delivers {indices.tolist()}, its pages are {expected}")
        require(given.end == held.length, f"{about} does not end with the lock")
        geometry = self.host.geometries[component]
        start = floor_page(geometry.first_needed(held.length), self.host.page_size)
        require(geometry.at_node_end or given.start == start, f"{about} should start at {start}")
        check_content(self.host, component, [(held.extra_key, held.tokens[: end * TOKEN_BYTES]) for end in ends], indices)
        if given.indices.flags.writeable:
            given.indices.fill(POISON)
        return Segment(given.start, given.end, indices)

    def unlock(self, held: Held, component: str | None = None) -> None:
        """`unlock_ref`, whole or one component early."""
        self.forget_journals()
        self.cache.unlock_ref(held.lock, component)
        require(not self._moved(), "unlock_ref allocated or freed")
        if component is None:
            self.held.discard(held)
            self.waiting.discard(held)
        else:
            held.parts.remove(component)

    def insert(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        """`insert` of what requests own. Duplicates and refused stay theirs, the rest is the cache's from now on."""
        view = as_token_ids(ids).copy()
        tokens = view.tobytes()
        ends = {name: ends_of(self.host, name, segments) for name, segments in values.items()}
        for name, offered in ends.items():
            assert self.request_owned[name].issuperset(offered), "the test offers pages that no request owns"
        more = {name: set(offered.values()) for name, offered in ends.items()}
        length = self.model.longest_usable(extra_key, tokens, more) if self._reuses else 0
        before = self.component_events.known(extra_key, tokens)
        private = {name: [Segment(s.start, s.end, s.indices.copy()) for s in segments] for name, segments in values.items()}
        self.forget_journals()
        raw = self.cache.insert(view, private, extra_key)
        result = InsertResult(raw.length, copies_of(raw.duplicates, ends), copies_of(raw.refused, ends))
        view.fill(POISON)
        for segments in private.values():
            for segment in segments:
                segment.indices.fill(POISON)
        locked = {name: self.locked(name) for name in self.host.geometries}
        require(raw.length == length, f"insert says {raw.length} tokens are usable, it should be {length}")
        for name, offered in ends.items():
            known = {end for end in offered.values() if self.model.index_at(name, extra_key, tokens, end) is not None}
            adopted = check_offer(name, offered, known, result)
            self.component_events.adopted(name, [offered[index] for index in adopted], before)
            for index in adopted:
                self.request_owned[name].remove(index)
                self.model.put(name, extra_key, tokens[: offered[index] * TOKEN_BYTES], index)
        self._freed.learn("insert", locked, self.waiting, offered={name: offered.keys() for name, offered in ends.items()})
        if self._simulator is not None:
            self._simulator.use(extra_key, tokens, result.length)
        return result

    def evict(self, component: str, n: int) -> int:
        """`evict`: exactly min(n, evictable), nothing locked, and in the order of the simulator. The last victim may give up more
        than was missing, of what the host has too."""
        expected = min(max(n, 0), self.cache.size(component).evictable)
        locked = {name: self.locked(name) for name in self.host.geometries}
        order: set[PageKey] | None = None
        if self._simulator is not None:
            resident = self.model.resident(component)
            order = set(self._simulator.evict(max(n, 0), {resident[index] for index in locked[component]}))
        copied = set[PageKey]() if self._ledger is None else set(self._ledger.claims.resident[component])
        self.forget_journals()
        freed = self.cache.evict(component, n)
        gone = self.learn("evict", locked, asked={component})
        require(len(gone[component]) == freed, f"evict says {freed} were freed, the allocator got {len(gone[component])}")
        one_unit = self.host.geometries[component].at_node_end
        surplus = 0 if one_unit else longest_run(copied.intersection(gone[component]), self.host.page_size) - 1
        surplus = max(0, surplus)  # something of the last victim was missing
        some = f"{expected} to {expected + surplus}" if surplus else str(expected)
        require(expected <= freed <= expected + surplus, f"evict({n}) freed {freed}, {some} were to be had")
        if order is not None:
            late = [len(prefix) // TOKEN_BYTES for _, prefix in order ^ set(gone[component])]
            require(not late, f"evict and a least-recently-used list differ in pages that end at {late}")
        self.component_events.evicted(gone)
        for name, geometry in self.host.geometries.items():
            require(not (geometry.prefix_closed and self.model.unsupported(name)), "evict left a page without the one before it")
        return freed

    def reset(self) -> bool:
        """`reset`: everything, or nothing while a lock lives."""
        self.forget_journals()
        done = self.cache.reset()
        locks = len(self.held | self.waiting)
        require(done != bool(locks), f"reset gave {done} with {locks} locks held")
        self.learn("reset", {name: self.locked(name) for name in self.host.geometries}, forgets=done)
        if done:
            for name in self.host.geometries:
                require(not self.model.resident(name), f"reset kept pages of {name!r}")
            if self._simulator is not None:
                self._simulator.clear()
        return done

    # looking

    def locked(self, component: str) -> set[int]:
        """Pages of `component` that live receipts cover."""
        indices = {
            self.model.index_at(component, held.extra_key, held.tokens, end)
            for held in self.held | self.waiting
            if component in held.parts
            for end in self.model.needed_ends(component, held.length)
        }
        return {index for index in indices if index is not None}

    def verify(self) -> None:
        """Everything that must be true between two calls: owners, sizes, content, receipts, and the cache's own check."""
        for component, allocator in self.host.allocators.items():
            resident, requests = self.model.resident(component), self.request_owned[component]
            lost = allocator.total - allocator.n_free - len(resident) - len(requests) - len(self._in_flight(component))
            require(lost == 0, f"{lost} pages of {component!r} have no owner")
            self._check_size(component)
            check_content(self.host, component, list(resident.values()), np.asarray(list(resident), np.int32))
        for held in self.held:
            for component in held.parts:
                self.segment(held, component)
        if self._ledger is not None:
            self._ledger.verify(self.model)
        self.cache.check_integrity({name: np.asarray(sorted(owned), np.int32) for name, owned in self.request_owned.items()})

    def _check_size(self, component: str) -> None:
        size = self.cache.size(component)
        resident, locked = len(self.model.resident(component)), len(self.locked(component))
        about = f"of {component!r}: {size}"
        owned, coming = len(self.request_owned[component]), len(self._in_flight(component))
        check_account(size, self.host.allocators[component], owned, coming, resident, about)
        # A window may begin inside a node, which is then held whole.
        exact = self.host.geometries[component].prefix_closed or not (self.held | self.waiting)
        require(size.protected == locked if exact else size.protected >= locked, f"locks cover {locked}, the size {about}")

    def learn(
        self,
        call: str,
        locked: Mapping[str, set[int]],
        *,
        asked: Collection[str] = (),
        allocates: bool = False,
        forgets: bool = False,
    ) -> dict[str, list[PageKey]]:
        """`FreedPages.learn`."""
        return self._freed.learn(call, locked, self.waiting, asked=asked, allocates=allocates, forgets=forgets)

    def forget_journals(self) -> None:
        """Before a call that `learn` is asked about afterwards."""
        self._freed.forget()

    def _in_flight(self, component: str) -> Mapping[int, PageKey]:
        return {} if self._ledger is None else self._ledger.in_flight(component)

    def _sizes(self) -> list[tuple[int, ...]]:
        return [tuple(self.cache.size(name)) for name in self.host.geometries]

    def _moved(self) -> bool:
        return self._freed.moved()
