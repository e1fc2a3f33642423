"""L3 -> L2: what a queued prompt lacks is asked for, brought into host slots, and attached to the tree like an insert.

The length is chosen twice, over all components: by what the storage says it has, and by what arrived and memory still has then.
Prompts that share a prefix join: a page on its way under some key is not asked for again. Waiting fetches own at most half of L2.
Whatever arrives stays its fetch's until it is attached; a reset makes every arrival a stranger. All ranks take the same
decisions: what depends on when a storage answered goes through `agree`. Nothing here waits.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Protocol, final

import numpy as np

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.locks import Refused
from kvcache_core.contracts.results import Indices
from kvcache_core.contracts.tokens import ExtraKey, TokenIds, as_token_ids, floor_page
from kvcache_radix.node import DIGEST_BYTES, Node
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.fetch import Fetch, Request
from kvcache_unified_hicache.guarded_store import GuardedStore
from kvcache_unified_hicache.host_pool.page_layout import MAX_ROWS
from kvcache_unified_hicache.node_digests import NodeDigests
from kvcache_unified_hicache.page_bytes import PageBytes
from kvcache_unified_hicache.prefix_pages import Flags, PrefixPages, either
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.page_keys import storage_keys

REQUEST_BYTES: Final = 32 << 20
"""Of pages in one request to the guard, and so in one batch of host memory."""


class HostRoom(Protocol):
    """The part of the host tier that fetches need; `c` is a component's number."""

    def alloc(self, c: int, n: int) -> Indices | None: ...

    def total(self, c: int) -> int: ...

    def obtainable(self, c: int) -> int:
        """Slots that are free or can be had by evicting."""
        ...


@final
class Fetches:
    """`free(c, slots)` gives host slots back. `in_flight[c]` counts those that fetches own. `threshold`: tokens that storage must
    add to what memory has."""

    def __init__(
        self,
        tree: RadixTree,
        guard: GuardedStore,
        digests: NodeDigests,
        frames: Sequence[PageFrame],
        identities: Sequence[bytes],
        page_bytes: PageBytes,
        host: HostRoom,
        free: Callable[[int, Indices], None],
        agree: Callable[[Sequence[int]], Sequence[int]],
        counters: CacheCounters,
        threshold: int,
    ) -> None:
        self._tree = tree
        self._guard = guard
        self._digests = digests
        self._frames = tuple(frames)
        self._identities = tuple(identities)
        self._page_bytes = page_bytes
        self._host = host
        self._free = free
        self._agree = agree
        self._counters = counters
        self._threshold = threshold
        self._attaching = Attaching(tree, page_bytes, free, counters)
        self._pending: list[Fetch] = []
        self._coming: dict[str, Fetch] = {}
        self.in_flight = [0] * len(frames)

    # asking

    def start(self, ids: TokenIds, extra_key: ExtraKey) -> Fetch | Refused:
        """Ask the storage for what memory lacks of the whole pages of `ids`.

        Raises TypeError or ValueError for what cannot be a key.
        """
        view = as_token_ids(ids)
        limit = floor_page(len(view), self._tree.page_size)
        match = self._tree.match(view[:limit], extra_key)
        if limit - match.host_len < self._threshold:
            return Refused.NOTHING_TO_DO
        pages = PrefixPages(self._tree, np.array(view[:limit]), extra_key)
        keys = self._keys(pages, match.host_len)
        fetch = Fetch(pages, keys, match.host_len)
        wanted = [key for named in keys for key in named.values()]
        taken = self._guard.exists(wanted, fetch.answer)
        # Every rank is refused, or none: the others' answers then find nobody.
        [taken, open_] = self._agree([int(taken), int(not self._guard.refuses("read"))])
        if not taken:
            return Refused.BUSY if open_ else Refused.UNAVAILABLE
        self._pending.append(fetch)
        return fetch

    def _keys(self, pages: PrefixPages, known: int) -> list[dict[int, str]]:
        """The keys of all pages that a prefix longer than `known` may need and memory lacks, by component and page."""
        match = self._tree.match(pages.view, pages.extra_key)
        node = match.handle if isinstance(match.handle, Node) else None
        digests = self._digests.of_prompt(pages.view, node, match.matched_len, pages.extra_key)
        keys: list[dict[int, str]] = []
        for c, flags in enumerate(pages.resident()):
            first = pages.needed(c, known + self._tree.page_size).start
            missing = [page for page in range(first, pages.n) if not flags[page]]
            named = b"".join([digests[page * DIGEST_BYTES : (page + 1) * DIGEST_BYTES] for page in missing])
            keys.append(dict(zip(missing, storage_keys(named, self._identities[c]), strict=True)))
        return keys

    # going on

    def poll(self) -> int:
        """Move every fetch on as far as it goes; returns how many ended."""
        if not self._pending:
            return 0
        for fetch in self._pending:
            self._send(fetch)
        pending = list(self._pending)
        ready = [int(fetch.there is not None and (fetch.requests is None or fetch.complete)) for fetch in pending]
        # Interest ends by each rank's own clock, and decides what is fetched.
        agreed = self._agree(ready + [int(fetch.interest > 0) for fetch in pending])
        ended = 0
        for fetch, go, wanted in zip(pending, agreed[: len(pending)], agreed[len(pending) :], strict=True):
            if go:
                ended += self._bring(fetch, bool(wanted)) if fetch.requests is None else self._attach(fetch)
        return ended

    def forget(self) -> None:
        """Whatever is under way comes to nothing: its slots are freed when it arrives."""
        self._coming.clear()
        for fetch in list(self._pending):
            fetch.forgotten = True
            for request in fetch.requests or ():
                if not request.sent:
                    request.sent = True
                    request.answer(None)
            if fetch.requests is None:
                self._end(fetch)
            fetch.done = True

    def usable(self, fetch: Fetch) -> bool:
        """Whether as much as the storage promised can be used from memory now."""
        return not fetch.forgotten and self._tree.match(fetch.pages.view, fetch.pages.extra_key).host_len >= fetch.length

    def owned(self, c: int) -> Indices:
        """All host slots of component `c` that fetches own."""
        return np.concatenate([np.empty(0, np.int32), *(fetch.slots(c) for fetch in self._pending)])

    # planning

    def _bring(self, fetch: Fetch, wanted: bool) -> bool:
        """The storage has answered: choose the length, reserve slots, ask for the pages. Returns whether that ended it."""
        if not wanted:
            return self._end(fetch)
        obtainable = [self._host.obtainable(c) for c in range(len(self._frames))]
        room_now = (*self.in_flight, *obtainable)
        if fetch.waits_with == room_now:
            return False
        pages = fetch.pages
        assert fetch.there is not None
        match = self._tree.match(pages.view, pages.extra_key)
        resident = pages.resident()
        there = either(resident, self._agreed(fetch.there))
        length = pages.usable(there, len(pages.view))
        if length - match.host_len < self._threshold:
            return self._end(fetch)
        # What memory has of it already must not make room for the rest.
        lock = self._tree.lock(match, host=True)
        assert lock is not None
        try:
            missing = self._missing(fetch, resident)
            halves = [self._host.total(c) // 2 for c in range(len(self._frames))]
            room = [
                min(half - used, self._host.obtainable(c))
                for c, (half, used) in enumerate(zip(halves, self.in_flight, strict=True))
            ]
            fits = self._fitting(pages, there, missing, length, room)
            if fits < self._fitting(pages, there, missing, length, halves) and any(self.in_flight):
                fetch.waits_with = room_now
                return False  # others will give slots back
            if fits - match.host_len < self._threshold:
                self._counters.misses[Reasons.NO_ROOM_FOR_FETCH] += 1
                return self._end(fetch)
            requests = self._reserve(fetch, missing, resident, fits)
        finally:
            self._tree.unlock(lock)
        if requests is None:
            self._counters.misses[Reasons.NO_ROOM_FOR_FETCH] += 1
            return self._end(fetch)
        fetch.length = fits
        fetch.requests = requests
        for request in requests:
            self.in_flight[request.c] += len(request.slots)
            self._coming.update(dict.fromkeys(request.keys, fetch))
        self._send(fetch)
        return False

    def _missing(self, fetch: Fetch, resident: Flags) -> list[set[int]]:
        """By component, the pages that would take slots: neither in memory nor coming already."""
        return [
            {page for page, key in keys.items() if not flags[page] and key not in self._coming}
            for keys, flags in zip(fetch.keys, resident, strict=True)
        ]

    def _fitting(self, pages: PrefixPages, there: Flags, missing: Sequence[set[int]], length: int, room: Sequence[int]) -> int:
        """The longest usable length, at most `length`, whose missing pages fit into `room`."""
        page = self._tree.page_size
        while length:
            lacking = [len(missing[c].intersection(pages.needed(c, length))) - room[c] for c in range(len(room))]
            if max(lacking) <= 0:
                return length
            # A prefix needs all of its pages of a closed component, so as many must go from its end; others only slide.
            closed = self._tree.store.closed
            shorter = lacking[closed] if closed >= 0 else 1
            length = pages.usable(there, max(0, length - max(1, shorter) * page))
        return 0

    def _agreed(self, flags: Flags) -> Flags:
        """What is so on every rank. Everything else that a length follows from is the same on all of them."""
        agreed = iter(self._agree([int(flag) for of_component in flags for flag in of_component]))
        return [[bool(next(agreed)) for _ in of_component] for of_component in flags]

    def _reserve(self, fetch: Fetch, missing: Sequence[set[int]], resident: Flags, length: int) -> list[Request] | None:
        """Slots for what a prefix of `length` lacks, and the requests for it; None, with nothing taken, without room."""
        requests: list[Request] = []
        for c, frame in enumerate(self._frames):
            needed = fetch.pages.needed(c, length)
            wanted = sorted(missing[c].intersection(needed))
            slots = self._host.alloc(c, len(wanted)) if wanted else np.empty(0, np.int32)
            if slots is None:
                for request in requests:
                    self._free(request.c, request.slots)
                return None
            for at, end in _parts(len(wanted), frame.file_bytes):
                part = wanted[at:end]
                requests.append(Request(c, part, [fetch.keys[c][page] for page in part], slots[at:end]))
            others = (self._coming.get(fetch.keys[c].get(page, "")) for page in needed if not resident[c][page])
            fetch.waits_for += dict.fromkeys(other for other in others if other is not None)
        return requests

    def _send(self, fetch: Fetch) -> None:
        """Ask for what was not asked for yet, as far as the guard takes it."""
        for request in fetch.requests or ():
            if request.sent:
                continue
            room = self._page_bytes.room(request.c, len(request.keys))
            if self._guard.fetch(request.keys, self._frames[request.c], room, request.answer):
                request.sent = True
            elif self._guard.refuses("read"):
                request.sent = True
                request.answer(None)
            else:
                return

    def _attach(self, fetch: Fetch) -> bool:
        """Everything is there."""
        if not fetch.forgotten:
            self._attaching.land(fetch)
            self._attaching.attach(fetch, self._agreed(fetch.arrived))
        return self._end(fetch)

    def _end(self, fetch: Fetch) -> bool:
        self._pending.remove(fetch)
        for request in fetch.requests or ():
            self.in_flight[request.c] -= len(request.slots)
            for key in request.keys:
                if self._coming.get(key) is fetch:
                    del self._coming[key]
            if fetch.forgotten:
                self._free(request.c, request.slots)
        if fetch.requests is None:
            fetch.length = fetch.asked_len
        fetch.requests = None
        fetch.done = True
        return not fetch.forgotten


def _parts(n: int, nbytes: int) -> list[tuple[int, int]]:
    """How `n` pages of `nbytes` are cut into requests: as few as REQUEST_BYTES allows, and of equal sizes. A batch has a power of
    two of rows, so most of it is used, and none is so small that a load would rather copy it together with others."""
    most = min(MAX_ROWS, max(1, REQUEST_BYTES // nbytes))
    requests = -(-n // (1 << (most.bit_length() - 1)))
    cuts = [n * i // requests for i in range(requests + 1)] if n else [0]
    return list(pairwise(cuts))
