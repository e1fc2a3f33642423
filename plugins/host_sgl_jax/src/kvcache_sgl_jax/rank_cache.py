"""The way of an sgl-jax request through one cache of ours: match, hold, offer a chunk, finish, evict, load.

sgl-jax's caches rewrite the request themselves, and this does what they do: it moves the request's hold and sets
`prefix_indices`, `cache_protected_len`, `last_matched_prefix_len` and its row of the page table. It knows neither sgl-jax's
modules nor our cache types; it is used for one data-parallel rank.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Lock, Refused
from kvcache_core.contracts.results import InsertResult, full
from kvcache_core.contracts.tokens import ExtraKey, floor_page
from kvcache_core.errors import IntegrityError
from kvcache_sgl_jax.held_prefix import HeldPrefix
from kvcache_sgl_jax.rank_allocator import RankAllocator
from kvcache_sgl_jax.slots import Slots, pages_of, slots_of

FULL = "full"
LOAD_SECONDS = 10.0
"""Far more than a copy takes; a load that is not there by then is given up, and its tokens are computed."""
NO_SLOTS: Slots = np.empty(0, np.int32)


class HostRequest(Protocol):
    """What is read and written of sgl-jax's `Req`."""

    req_pool_idx: int | None
    origin_input_ids: list[int]
    output_ids: list[int]
    fill_ids: list[int]
    extra_key: str | None
    last_node: HeldPrefix
    prefix_indices: npt.NDArray[np.int32]
    last_matched_prefix_len: int
    cache_protected_len: int

    def pop_committed_kv_cache(self) -> int: ...


class PageTable(Protocol):
    """What is used of sgl-jax's `ReqToTokenPool`: a row of slots for each request."""

    req_to_token: npt.NDArray[np.int32]


class Gate(Protocol):
    """Makes the device see what was queued."""

    def flush(self) -> None:
        """Dispatch queued copies; nothing happens when there are none."""
        ...


class Found(NamedTuple):
    """A match as sgl-jax wants it: the slots of its device part, the hold to lock, and how many tokens only the host has."""

    slots: Slots
    held: HeldPrefix
    host_tokens: int


@final
class RankCache:
    """One cache and the rank's part of the host's bookkeeping."""

    def __init__(self, cache: BasePrefixCache, rank: int, allocator: RankAllocator, table: PageTable, gate: Gate) -> None:
        self.cache = cache
        self._rank = rank
        self._allocator = allocator
        self._table = table
        self._gate = gate
        self._page_size = allocator.page_size
        self._kept: dict[int, tuple[HostRequest, HeldPrefix]] = {}
        """By row: the holds that `offer_chunk` left with requests. sgl-jax loses `last_node` between the chunks of a request that
        names a room of its disaggregation."""

    @property
    def evictable(self) -> int:
        """Tokens."""
        return self.cache.size(FULL).evictable * self._page_size

    @property
    def protected(self) -> int:
        """Tokens that are neither free nor evictable and belong to no request: locked ones and destinations of loads."""
        size = self.cache.size(FULL)
        return (size.protected + size.in_flight) * self._page_size

    def match(self, token_ids: Sequence[int], extra_key: str | None) -> Found:
        """The longest known prefix. sgl-jax wants the slots at once, so it is locked for a moment: it becomes recent, as in
        sgl-jax's own caches."""
        ids, key = known_ids(token_ids), as_extra_key(extra_key)
        if ids is None:
            return self.root()
        match = self.cache.match_prefix(ids, key)
        held = HeldPrefix(self.cache, self._rank, ids, key, match)
        if not match.device_len:
            return Found(NO_SLOTS, held, match.host_len)
        lock = self.cache.lock_ref(match)
        if lock is None:
            raise IntegrityError("lock_ref found a match stale that was made in the same moment")
        slots = self._slots(lock)
        self.cache.unlock_ref(lock)
        return Found(slots, held, match.host_len - match.device_len)

    def root(self) -> Found:
        """The prefix of no tokens, for a prompt that is not looked up; its hold can be locked as any other."""
        nothing = np.empty(0, np.int32)
        return Found(NO_SLOTS, HeldPrefix(self.cache, self._rank, nothing, (), self.cache.match_prefix(nothing, ())), 0)

    def offer_chunk(self, request: HostRequest) -> None:
        """After a chunk, or the whole prompt, was launched: offer its whole pages and read them from the cache from now on."""
        row, old = self._row(request), self._hold_of(request)
        request.last_node = old
        ids = known_ids(request.fill_ids)
        n, start = len(request.fill_ids), old.length
        end = floor_page(n, self._page_size)
        if ids is not None and end > start:
            key = as_extra_key(request.extra_key)
            result = self._insert(ids, row, start, end, key)
            if result.length > start:
                new = HeldPrefix(self.cache, self._rank, ids, key, self.cache.match_prefix(ids[: result.length], key))
                new.lock()
                row[start : result.length] = slots_of(new.pages(), self._page_size)[start:]
                # Freed only now: until here the request's row named these pages.
                self._allocator.free(result.duplicates[FULL])
                old.unlock()
                request.last_node = new
                request.last_matched_prefix_len = request.cache_protected_len = result.length
        assert request.req_pool_idx is not None
        self._kept[request.req_pool_idx] = (request, request.last_node)
        request.prefix_indices = row[:n].copy()

    def finish(self, request: HostRequest, *, insert: bool) -> None:
        """The request ends, or is retracted (`insert` False): offer what was computed, free the rest, release the hold.

        sgl-jax may finish a request twice; the second time there is nothing to free and nothing held.
        """
        n = request.pop_committed_kv_cache()
        held = self._hold_of(request)
        if request.req_pool_idx is not None:
            self._kept.pop(request.req_pool_idx, None)
        if not held.locked:
            if n:
                # Nothing of it is the cache's, and nobody else would give it back.
                self._allocator.free_slots(self._row(request)[:n].copy())
            return
        row, start = self._row(request), held.length
        end = floor_page(n, self._page_size)
        rest = row[start:n].copy()
        ids = known_ids((request.origin_input_ids + request.output_ids)[:n]) if insert and end > start else None
        if ids is not None:
            result = self._insert(ids, row, start, end, as_extra_key(request.extra_key))
            back = np.concatenate([result.duplicates[FULL], result.refused[FULL]])
            rest = np.concatenate([slots_of(back, self._page_size), row[end:n]])
        if len(rest):
            self._allocator.free_slots(rest)
        held.unlock()

    def evict(self, need: int) -> int:
        """Make room for `need` tokens; returns how many were freed. sgl-jax asks for all it needs, not for what it lacks."""
        missing = -(-need // self._page_size) - self._allocator.n_free
        if missing <= 0:
            return 0
        freed = self.cache.evict(FULL, missing)
        # sgl-jax may write a freed page in its next forward, which does not come through our gate: copies out of it go first.
        self._gate.flush()
        return freed * self._page_size

    def load(self, held: HeldPrefix) -> Found | None:
        """Bring the host part of a match to the device. None when nothing came; else the slots that came, after the device part.

        Unlike sgl-jax's own HiCache it evicts for it, and takes the part that fits where not all does. It waits: sgl-jax has no
        state for a request that is loading, and counts on the pages at once.
        """
        ticket = self.cache.load(held.match)
        if isinstance(ticket, Refused):
            # What could be evicted for it may have been, and its copies go before sgl-jax writes those pages.
            self._gate.flush()
            return None
        lock = ticket.lock
        assert lock is not None
        if not ticket.wait(LOAD_SECONDS):
            ticket.cancel()
            return None
        if not ticket.ok:
            self.cache.unlock_ref(lock)
            return None
        ids = held.ids[: lock.length]
        match = self.cache.match_prefix(ids, held.extra_key)
        slots = self._slots(lock)[held.match.device_len :]
        self.cache.unlock_ref(lock)
        loaded = HeldPrefix(self.cache, self._rank, ids, held.extra_key, match)
        return Found(slots, loaded, held.match.host_len - match.device_len)

    def turn(self) -> None:
        """Once in a step: dispatch queued copies, commit those that are complete."""
        self._gate.flush()
        self.cache.poll()

    def reset(self) -> None:
        """Forget everything. Raises IntegrityError while a request holds something: sgl-jax flushes only when it is idle."""
        self._gate.flush()
        if not self.cache.reset():
            raise IntegrityError("the cache cannot be flushed: a request still holds a prefix")

    def _hold_of(self, request: HostRequest) -> HeldPrefix:
        owner, held = self._kept.get(request.req_pool_idx or 0, (None, request.last_node))
        return held if owner is request else request.last_node

    def _row(self, request: HostRequest) -> npt.NDArray[np.int32]:
        assert request.req_pool_idx is not None, "the host offers tokens of a request that has no row of the page table"
        return self._table.req_to_token[request.req_pool_idx]

    def _insert(
        self, ids: npt.NDArray[np.int32], row: npt.NDArray[np.int32], start: int, end: int, key: ExtraKey
    ) -> InsertResult:
        pages = pages_of(row[start:end], self._page_size)
        return self.cache.insert(ids[:end], full(pages, self._page_size, start), key)

    def _slots(self, lock: Lock) -> Slots:
        return slots_of(lock.segment(FULL).indices, self._page_size)


def known_ids(token_ids: Sequence[int]) -> npt.NDArray[np.int32] | None:
    """sgl-jax keeps tokens in lists; keys are compared by the bytes of int32.

    None for a prompt with a number that is no token, which sgl-jax computes all the same: it is neither found nor kept.
    """
    try:
        ids = np.array(token_ids, dtype=np.int32)
    except OverflowError:
        return None
    return None if len(ids) and int(ids.min()) < 0 else ids


def as_extra_key(extra_key: str | None) -> ExtraKey:
    """sgl-jax has joined salt and LoRA id to one text before it gets here, so it can only be one part. Absent is not empty.

    Half a surrogate pair, which JSON can carry, is a text like any other.
    """
    return () if extra_key is None else (extra_key.encode("utf-8", "surrogatepass"),)
