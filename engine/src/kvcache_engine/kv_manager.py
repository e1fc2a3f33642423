"""The protocol between a request and the prefix cache, in one place: admit, grow, chunk done, finish, preempt, abort.

It keeps the ownership rule: an index belongs to a free list, the cache, a transfer or a request, and only `insert` moves it to
the cache. It decides neither who runs nor who waits, and it never asks what type the cache is.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import final

import numpy as np

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Lock, Refused, Ticket
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import NO_INDICES, Indices, MatchResult, Values
from kvcache_core.contracts.tokens import floor_page
from kvcache_core.errors import IntegrityError
from kvcache_engine.component import FULL_ATTENTION, Component
from kvcache_engine.request import Phase, Request
from kvcache_engine.request_pages import RequestPages
from kvcache_engine.request_states import RequestStates
from kvcache_engine.snapshots import SnapshotPositions


class Admission(Enum):
    """What became of an attempt to admit a request."""

    ADMITTED = "admitted"
    LOADING = "loading"
    SHORT = "short"


@final
class KVManager:
    """Serves the requests of one cache. `allocators` are the host's, by component; `page_size` and `chunk_tokens` in tokens.
    `snapshots`: where states are left behind; default: nowhere, for models without any."""

    def __init__(
        self,
        cache: BasePrefixCache,
        allocators: Mapping[str, Allocator],
        page_size: int,
        chunk_tokens: int,
        components: Sequence[Component] = FULL_ATTENTION,
        snapshots: SnapshotPositions | None = None,
    ) -> None:
        self._cache = cache
        self._allocators = dict(allocators)
        self._page_size = page_size
        self._chunk_tokens = chunk_tokens
        self._components = {component.name: component for component in components}
        self._snapshots = SnapshotPositions(page_size) if snapshots is None else snapshots

    def new_pages(self) -> RequestPages:
        """An empty page table for a request of this cache."""
        return RequestPages([each for each in self._components.values() if not each.is_state], self._page_size)

    def new_states(self) -> RequestStates:
        """No states yet, for a request of this cache."""
        return RequestStates([each.name for each in self._components.values() if each.is_state], self._page_size)

    def fits(self, n_tokens: int) -> bool:
        """Whether the pools could hold a request of `n_tokens` if they held nothing else."""
        return all(
            component.most_units(n_tokens, self._page_size, self._chunk_tokens) <= self._allocators[name].total
            for name, component in self._components.items()
        )

    def chunk_end(self, request: Request) -> int:
        """Where the next chunk of a prompt ends."""
        return self._snapshots.chunk_end(request.computed, request.n_tokens, self._chunk_tokens)

    def admit(self, request: Request, running: int) -> Admission:
        """Match, hold, compare what is needed with what can be had, allocate the first chunk, and load where that saves work.

        `running`: requests that may each need one more page in the next step. `SHORT` leaves the request as it was.
        """
        match, hold = self._match_and_hold(request)
        # Only now, with the match held: what it covers no longer counts as evictable.
        loads = match.host_len > match.device_len
        if loads and not running and not self.in_flight() and self._short(request, match.device_len, match.host_len, running):
            # Both what is locked already and what is to be loaded may be more than there is; nobody will make room for it.
            loads = False
        start = match.host_len if loads else match.device_len
        if self._short(request, match.device_len, start, running) or not self._allocate(request, self._own(request, start)):
            self._cache.unlock_ref(hold)
            return Admission.SHORT
        if loads:
            match, hold, ticket = self._load(request, match, hold)
            if ticket is not None:
                self._cache.unlock_ref(hold)
                request.ticket, request.matched_device, request.phase = ticket, match.device_len, Phase.LOADING
                return Admission.LOADING
        self._start(request, hold, match.device_len)
        return Admission.ADMITTED

    def finish_load(self, request: Request) -> bool:
        """Let a loading request run once its ticket is done; returns whether it is."""
        ticket = request.ticket
        assert ticket is not None and ticket.lock is not None
        if not ticket.done:
            return False
        request.ticket = None
        if ticket.ok:
            self._start(request, ticket.lock, request.matched_device)
        else:
            self._cache.unlock_ref(ticket.lock)
            match, hold = self._match_and_hold(request)
            self._start(request, hold, match.device_len)
        return True

    def grow(self, request: Request, n_tokens: int) -> bool:
        """Make room for `n_tokens` of a running request, evicting on shortage. False, with nothing changed, if there is none."""
        missing = {
            name: request.states.missing(name) if component.is_state else request.pages.missing(name, n_tokens)
            for name, component in self._components.items()
        }
        return self._allocate(request, missing)

    def advance(self, request: Request) -> None:
        """After a forward was dispatched and `request.computed` moved on: the state is where that forward left it."""
        keep = self._snapshots.keeps(request.computed, request.n_tokens)
        self._free(request.states.advance(request.computed, keep=keep))

    def commit_chunk(self, request: Request) -> None:
        """After a chunk's forward was dispatched: give its whole pages to the cache and read them there from now on."""
        end = self._offered_end(request)
        old = request.lock
        assert old is not None
        if end <= request.pages.cached_len:
            return
        ids, extra_key = request.ids(), request.spec.extra_key
        result = self._cache.insert(ids[:end], self._values(request, end), extra_key)
        if result.length <= old.length:
            # A lock on a shorter prefix would unpin pages in use. Everything offered was refused and stays in the page table.
            return
        lock = self._cache.lock_ref(self._cache.match_prefix(ids[: result.length], extra_key))
        assert lock is not None and lock.length == result.length
        request.pages.remap(lock)
        request.states.remap(lock)
        # Freed only now: until the remap, this request read its own copies.
        self._free(result.duplicates)
        self._cache.unlock_ref(old)
        request.lock = lock
        request.released.clear()

    def leave_behind(self, request: Request) -> None:
        """Give back what a running request needs no longer: its own pages behind a window, and what its lock still holds of a
        window or a state when all of it lies behind. Counted from the page boundary, where a later match may end."""
        at = floor_page(request.computed, self._page_size)
        self._free(request.pages.leave(at))
        lock = request.lock
        assert lock is not None
        for name, component in self._components.items():
            if name not in request.released and 0 < lock.length <= component.first_needed(at):
                self._cache.unlock_ref(lock, name)
                request.released.add(name)

    def finish(self, request: Request) -> None:
        """Offer what was computed, give back the rest, release the lock. Also how a running request is preempted."""
        lock = request.lock
        assert lock is not None
        end = self._offered_end(request)
        if end > request.pages.cached_len:
            values = self._values(request, end)
            result = self._cache.insert(request.ids()[:end], values, request.spec.extra_key)
            for name, owned in self._clear(request).items():
                # What is offered comes first in what is owned.
                offered = sum(len(segment.indices) for segment in values[name])
                parts = (result.duplicates.get(name, NO_INDICES), result.refused.get(name, NO_INDICES), owned[offered:])
                self._allocators[name].free(np.concatenate(parts))
        else:
            self._free(self._clear(request))
        self._release(request)

    def abort(self, request: Request) -> None:
        """Give back what the request owns in whatever phase it is, offering nothing."""
        self._free(self._clear(request))
        if request.ticket is not None:
            request.ticket.cancel()
            request.ticket = None
        if request.lock is not None:
            self._release(request)

    def in_flight(self) -> bool:
        """Whether a transfer still owns pages that will come free by polling."""
        return any(self._cache.size(name).in_flight for name in self._allocators)

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Every index of every pool has exactly one owner. Raises IntegrityError."""
        held = list(requests)
        owned = {
            name: np.concatenate([NO_INDICES, *(self._owned(request, component) for request in held)])
            for name, component in self._components.items()
        }
        self._cache.check_integrity(owned)

    def _owned(self, request: Request, component: Component) -> Indices:
        return (request.states if component.is_state else request.pages).owned(component.name)

    def _offered_end(self, request: Request) -> int:
        """How far the request has something to offer: whole pages, and where there are states as far as its snapshot."""
        has_states = any(component.is_state for component in self._components.values())
        return request.states.kept_at if has_states else floor_page(request.computed, self._page_size)

    @staticmethod
    def _values(request: Request, end: int) -> Values:
        return {**request.pages.values(end), **request.states.values()}

    @staticmethod
    def _clear(request: Request) -> Mapping[str, Indices]:
        return {**request.pages.clear(), **request.states.clear()}

    def _release(self, request: Request) -> None:
        assert request.lock is not None
        self._cache.unlock_ref(request.lock)
        request.lock = None
        request.released.clear()

    def _start(self, request: Request, lock: Lock, device_len: int) -> None:
        request.pages.begin(lock)
        request.states.begin(lock)
        request.lock = lock
        request.computed = lock.length
        request.count_cached(lock.length, device_len)
        request.phase = Phase.PREFILL

    def _match_and_hold(self, request: Request) -> tuple[MatchResult, Lock]:
        # The last token is always computed: its logits give the next one.
        match = self._cache.match_prefix(request.ids()[:-1], request.spec.extra_key)
        hold = self._cache.lock_ref(match)
        if hold is None:
            # Nothing ran in between on the thread that owns the cache.
            raise IntegrityError("lock_ref found a match stale that was made in the same moment")
        return match, hold

    def _load(self, request: Request, match: MatchResult, hold: Lock) -> tuple[MatchResult, Lock, Ticket | None]:
        """Load the host part; None for the ticket means: go on from the device part, under the lock returned."""
        ticket = self._cache.load(match)
        if ticket is Refused.STALE:
            # Our own allocation may have evicted from the host what the match counted on.
            self._cache.unlock_ref(hold)
            match, hold = self._match_and_hold(request)
            if match.host_len > match.device_len:
                ticket = self._cache.load(match)
        if isinstance(ticket, Refused):
            return match, hold, None
        return match, hold, ticket

    def _own(self, request: Request, start: int) -> dict[str, int]:
        """What the first chunk from `start` on takes, by component."""
        pages = self._pages(self._snapshots.chunk_end(start, request.n_tokens, self._chunk_tokens) - start)
        return {name: 1 if component.is_state else pages for name, component in self._components.items()}

    def _short(self, request: Request, device_len: int, start: int, running: int) -> bool:
        """Whether a component lacks room to load up to `start`, to compute the first chunk from there, and for one more unit of
        every running request; of states also for a snapshot."""
        own = self._own(request, start)
        for name, component in self._components.items():
            if component.is_state:
                needed = 1 + int(start > device_len)
            else:
                # What of a window lies below the device's part is on the device.
                loaded_from = max(device_len, floor_page(component.first_needed(start), self._page_size))
                needed = (start - loaded_from) // self._page_size
            size = self._cache.size(name)
            if size.free + size.evictable < own[name] + needed + running:
                return True
        return False

    def _allocate(self, request: Request, counts: Mapping[str, int]) -> bool:
        taken: dict[str, Indices] = {}
        for name, n in counts.items():
            indices = self._alloc(name, n)
            if indices is None:
                self._free(taken)
                return False
            taken[name] = indices
        for name, indices in taken.items():
            (request.states if self._components[name].is_state else request.pages).extend(name, indices)
        return True

    def _alloc(self, component: str, n: int) -> Indices | None:
        allocator = self._allocators[component]
        indices = allocator.alloc(n)
        if indices is None:
            self._cache.evict(component, n - allocator.n_free)
            indices = allocator.alloc(n)
        return indices

    def _free(self, owned: Mapping[str, Indices]) -> None:
        for name, indices in owned.items():
            self._allocators[name].free(indices)

    def _pages(self, n_tokens: int) -> int:
        return -(-n_tokens // self._page_size)
