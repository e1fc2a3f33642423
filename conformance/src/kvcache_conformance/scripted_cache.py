"""A prefix cache whose transfers end as a script says, for tests of hosts: loads from "host memory" and fetches from "storage".

It knows one prefix, `base`, and takes nothing that is inserted. Every load gives pages of its own to exactly one lock; releasing
the lock frees them. It is strict with its caller: nothing is released twice, and the caller never blocks on a ticket.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, final

import numpy as np

from kvcache_core.contracts.cache import BasePrefixCache, Tier
from kvcache_core.contracts.locks import Lock, Refused, Ticket
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import NO_INDICES, Indices, InsertResult, MatchResult, Segment, SizeInfo, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds
from kvcache_core.errors import IntegrityError, LockError

LoadOutcome = Literal["ok", "fail"] | Refused
FetchOutcome = tuple[int, int] | Refused
"""(polls until it is done, tokens of `base` that storage has), or a refusal."""


@final
class ScriptLock(Lock):
    """Covers pages that were loaded for it."""

    def __init__(self, indices: Indices, page_size: int) -> None:
        self.indices = indices
        self._page_size = page_size

    @property
    def length(self) -> int:
        return len(self.indices) * self._page_size

    def segment(self, component: str) -> Segment:
        return Segment(0, self.length, self.indices)


@final
class ScriptTicket(Ticket):
    """Done after so many polls. `cancel` tells the cache."""

    def __init__(
        self, polls: int, ok: bool, lock: ScriptLock | None, span: tuple[int, int], on_cancel: Callable[[], None]
    ) -> None:
        self.polls = polls
        self.cancelled = False
        self._ok, self._lock, self._span, self._on_cancel = ok, lock, span, on_cancel

    @property
    def lock(self) -> ScriptLock | None:
        return self._lock

    @property
    def done(self) -> bool:
        return self.polls <= 0

    @property
    def ok(self) -> bool:
        return self.done and self._ok

    @property
    def span(self) -> tuple[int, int]:
        return self._span if self.done else (0, 0)

    def wait(self, timeout: float) -> bool:
        raise AssertionError("a scheduler never blocks on a transfer")

    def cancel(self) -> None:
        assert not self.cancelled, "cancelled twice"
        self.cancelled = True
        self._on_cancel()


@final
class ScriptedCache(BasePrefixCache):
    """`base`: int32, whole pages. `put(pages, tokens)` writes the tokens of loaded pages to the host's memory. `loads` are the
    outcomes of loads, each done after `load_polls`. With `fetches`, the outcomes of prefetches, nothing is in host memory until
    one of them is done; without, all of `base` is, and there is no storage.

    `events` counts outcomes, and `cancel` and `cancel fetch`.
    """

    def __init__(
        self,
        allocator: Allocator,
        page_size: int,
        base: Indices,
        put: Callable[[Indices, Indices], None],
        loads: Sequence[LoadOutcome] = (),
        load_polls: int = 1,
        fetches: Sequence[FetchOutcome] | None = None,
    ) -> None:
        super().__init__()
        self.loads, self.fetches = deque(loads), None if fetches is None else deque(fetches)
        self.events: Counter[str | Refused] = Counter()
        self.locks: set[Lock] = set()
        self._allocator, self._page_size, self._base, self._put, self._load_polls = allocator, page_size, base, put, load_polls
        self._on_host = len(base) if fetches is None else 0
        self._loading: list[ScriptTicket] = []
        self._fetching: list[ScriptTicket] = []

    def match_prefix(self, ids: TokenIds, extra_key: ExtraKey = ()) -> MatchResult:
        length = self._known(ids, self._on_host)
        return MatchResult(None, 0, length, length)

    def lock_ref(self, match: MatchResult, length: int | None = None, *, host: bool = False) -> Lock | None:
        return self._new_lock(NO_INDICES)

    def unlock_ref(self, lock: Lock, component: str | None = None) -> None:
        if lock not in self.locks:
            raise LockError("released twice")
        self.locks.remove(lock)
        assert isinstance(lock, ScriptLock)
        if len(lock.indices) and not any(ticket.lock is lock for ticket in self._loading):
            self._allocator.free(lock.indices)

    def insert(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        refused = {name: np.concatenate([NO_INDICES, *(s.indices for s in segments)]) for name, segments in values.items()}
        return InsertResult(0, {}, refused)

    def evict(self, component: str, n: int, tier: Tier = "device") -> int:
        return 0

    def size(self, component: str, tier: Tier = "device") -> SizeInfo:
        loading = [ticket.lock for ticket in self._loading if ticket.lock is not None]
        moving = sum(len(lock.indices) for lock in loading)
        held = sum(lock.length // self._page_size for lock in self.locks if lock not in loading)
        free, total = self._allocator.n_free, self._allocator.total
        return SizeInfo(free, 0, held, moving, total - free - held - moving, total)

    def reset(self) -> bool:
        return not self.locks

    def check_integrity(self, request_owned: Mapping[str, Indices] | None = None) -> None:
        """Compares the number of pages that requests own with what is left of the pool without them."""
        for name, owned in (request_owned or {}).items():
            if len(owned) != self.size(name).request_owned:
                raise IntegrityError("a page has no owner, or two")

    def load(self, match: MatchResult) -> Ticket | Refused:
        outcome = self.loads.popleft()
        self.events[outcome] += 1
        if isinstance(outcome, Refused):
            return outcome
        indices = self._allocator.alloc(match.host_len // self._page_size)
        assert indices is not None, "admission must have counted the units to load"
        lock = self._new_lock(indices)
        ticket = ScriptTicket(self._load_polls, outcome == "ok", lock, (0, 0), lambda: self._cancel_load(lock))
        self._loading.append(ticket)
        return ticket

    def prefetch(self, ids: TokenIds, extra_key: ExtraKey = ()) -> Ticket | Refused:
        if self.fetches is None:
            return Refused.NO_TIER
        outcome = self.fetches.popleft() if self.fetches else Refused.NOTHING_TO_DO
        if isinstance(outcome, Refused):
            self.events[outcome] += 1
            return outcome
        self.events["fetch"] += 1
        polls, length = outcome
        start, end = self._on_host, self._known(ids, length)
        ticket = ScriptTicket(polls, end > start, None, (start, end) if end > start else (0, 0), self._cancel_fetch)
        self._fetching.append(ticket)
        return ticket

    def poll(self) -> int:
        for ticket in (*self._loading, *self._fetching):
            ticket.polls -= 1
        commits = [ticket for ticket in (*self._loading, *self._fetching) if ticket.done]
        self._loading = [ticket for ticket in self._loading if not ticket.done]
        self._fetching = [ticket for ticket in self._fetching if not ticket.done]
        for ticket in commits:
            lock = ticket.lock
            if lock is None:
                # Cancelling only withdraws interest: what arrives is kept.
                self._on_host = max(self._on_host, ticket.span[1])
                continue
            if ticket.ok:
                self._put(lock.indices, self._base[: lock.length])
            if lock not in self.locks:  # cancelled meanwhile: the destination is freed by the commit
                self._allocator.free(lock.indices)
        return len(commits)

    def forget(self) -> None:
        """As if host memory had been taken for something else."""
        self._on_host = 0

    def _known(self, ids: TokenIds, most: int) -> int:
        n = min(len(ids), most)
        different = np.flatnonzero(np.asarray(ids[:n]) != self._base[:n])
        return (int(different[0]) if len(different) else n) // self._page_size * self._page_size

    def _new_lock(self, indices: Indices) -> ScriptLock:
        lock = ScriptLock(indices, self._page_size)
        self.locks.add(lock)
        return lock

    def _cancel_load(self, lock: ScriptLock) -> None:
        self.events["cancel"] += 1
        self.unlock_ref(lock)

    def _cancel_fetch(self) -> None:
        self.events["cancel fetch"] += 1
