"""The protocol between a request and the prefix cache, in one place: admit, grow, chunk done, finish, preempt, abort.

It keeps the ownership rule: an index belongs to a free list, the cache, a transfer or a request, and only `insert` moves it to
the cache. It decides neither who runs nor who waits, and it never asks what type the cache is.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import final

import numpy as np

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Lock, Refused, Ticket
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import NO_INDICES, Indices, MatchResult
from kvcache_core.contracts.tokens import floor_page
from kvcache_core.errors import IntegrityError
from kvcache_engine.request import Phase, Request
from kvcache_engine.request_pages import RequestPages


class Admission(Enum):
    """What became of an attempt to admit a request."""

    ADMITTED = "admitted"
    LOADING = "loading"
    SHORT = "short"


@final
class KVManager:
    """Serves the requests of one cache. `allocators` are the host's, by component; `page_size` and `chunk_tokens` in tokens."""

    def __init__(self, cache: BasePrefixCache, allocators: Mapping[str, Allocator], page_size: int, chunk_tokens: int) -> None:
        self._cache = cache
        self._allocators = dict(allocators)
        self._page_size = page_size
        self._chunk_tokens = chunk_tokens

    def new_pages(self) -> RequestPages:
        """An empty page table for a request of this cache."""
        return RequestPages(self._allocators, self._page_size)

    def fits(self, n_tokens: int) -> bool:
        """Whether the pools could hold a request of `n_tokens` if they held nothing else."""
        return all(self._pages(n_tokens) <= allocator.total for allocator in self._allocators.values())

    def admit(self, request: Request, running: int) -> Admission:
        """Match, hold, compare what is needed with what can be had, allocate the first chunk, and load where that saves work.

        `running`: requests that may each need one more page in the next step. `SHORT` leaves the request as it was.
        """
        ids = request.ids()
        match, hold = self._match_and_hold(request)
        first_chunk = min(len(ids), match.host_len + self._chunk_tokens) - match.host_len
        own = self._pages(first_chunk)
        to_load = (match.host_len - match.device_len) // self._page_size
        # Only now, with the match held: what it covers no longer counts as evictable.
        short = any(self._available(name) < own + to_load + running for name in self._allocators)
        if short or not self._allocate(request.pages, dict.fromkeys(self._allocators, own)):
            self._cache.unlock_ref(hold)
            return Admission.SHORT
        if match.host_len > match.device_len:
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
        missing = {name: request.pages.missing(name, n_tokens) for name in self._allocators}
        return self._allocate(request.pages, missing)

    def commit_chunk(self, request: Request) -> None:
        """After a chunk's forward was dispatched: give its whole pages to the cache and read them there from now on."""
        end = floor_page(request.computed, self._page_size)
        old = request.lock
        assert old is not None
        if end <= request.pages.cached_len:
            return
        ids, extra_key = request.ids(), request.spec.extra_key
        result = self._cache.insert(ids[:end], request.pages.values(end), extra_key)
        if result.length <= old.length:
            # A lock on a shorter prefix would unpin pages in use. Everything offered was refused and stays in the page table.
            return
        lock = self._cache.lock_ref(self._cache.match_prefix(ids[: result.length], extra_key))
        assert lock is not None and lock.length == result.length
        request.pages.remap(lock)
        # Freed only now: until the remap, this request read its own copies.
        self._free(result.duplicates)
        self._cache.unlock_ref(old)
        request.lock = lock

    def finish(self, request: Request) -> None:
        """Offer what was computed, give back the rest, release the lock. Also how a running request is preempted."""
        lock = request.lock
        assert lock is not None
        end = floor_page(request.computed, self._page_size)
        start = request.pages.cached_len
        if end > start:
            result = self._cache.insert(request.ids()[:end], request.pages.values(end), request.spec.extra_key)
            offered = (end - start) // self._page_size
            for name, owned in request.pages.clear().items():
                parts = (result.duplicates.get(name, NO_INDICES), result.refused.get(name, NO_INDICES), owned[offered:])
                self._allocators[name].free(np.concatenate(parts))
        else:
            self._free(request.pages.clear())
        self._cache.unlock_ref(lock)
        request.lock = None

    def abort(self, request: Request) -> None:
        """Give back what the request owns in whatever phase it is, offering nothing."""
        self._free(request.pages.clear())
        if request.ticket is not None:
            request.ticket.cancel()
            request.ticket = None
        if request.lock is not None:
            self._cache.unlock_ref(request.lock)
            request.lock = None

    def in_flight(self) -> bool:
        """Whether a transfer still owns pages that will come free by polling."""
        return any(self._cache.size(name).in_flight for name in self._allocators)

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Every index of every pool has exactly one owner. Raises IntegrityError."""
        held = list(requests)
        owned = {
            name: np.concatenate([NO_INDICES, *(request.pages.owned(name) for request in held)]) for name in self._allocators
        }
        self._cache.check_integrity(owned)

    def _start(self, request: Request, lock: Lock, device_len: int) -> None:
        request.pages.begin(lock)
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

    def _available(self, component: str) -> int:
        size = self._cache.size(component)
        return size.free + size.evictable

    def _allocate(self, pages: RequestPages, counts: Mapping[str, int]) -> bool:
        taken: dict[str, Indices] = {}
        for name, n in counts.items():
            indices = self._alloc(name, n)
            if indices is None:
                self._free(taken)
                return False
            taken[name] = indices
        for name, indices in taken.items():
            pages.extend(name, indices)
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
