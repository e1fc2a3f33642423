"""The simplest cache that keeps the contract: a dictionary with one entry for each page of each prefix. No tree, no tiers.

It shows what the contract asks without any cleverness, and it is the healthy half of every planted fault with which the kit
itself is tested. Looking up a prefix costs its length for each of its pages, and an eviction looks at everything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kvcache_core.contracts.cache import BasePrefixCache, Tier
from kvcache_core.contracts.component import TreeComponent
from kvcache_core.contracts.locks import Lock
from kvcache_core.contracts.pools import Allocator
from kvcache_core.contracts.results import NO_INDICES, Indices, InsertResult, MatchResult, Segment, SizeInfo, Values
from kvcache_core.contracts.tokens import ExtraKey, TokenIds, as_token_ids, check_extra_key, floor_page
from kvcache_core.contracts.values import check_values
from kvcache_core.errors import IntegrityError, LockError

Place = tuple[str, ExtraKey, bytes]
"""Component, extra_key and the whole prefix up to the end of a page, as bytes."""


@dataclass(slots=True)
class Page:
    """One page, or state, that the cache owns."""

    index: int
    clock: int = 0
    locks: int = 0


class Handle(NamedTuple):
    """What a match remembers."""

    owner: object
    extra_key: ExtraKey
    tokens: bytes


@dataclass(slots=True, eq=False)
class ToyLock(Lock):
    """`pages` by component, in order; a component's entry goes when it is released."""

    tokens_held: int
    pages: dict[str, list[Page]]
    starts: Mapping[str, int]
    names: Sequence[str] = field(default_factory=tuple[str, ...])

    @property
    def length(self) -> int:
        return self.tokens_held

    def segment(self, component: str) -> Segment:
        if component not in self.names:
            raise KeyError(component)
        if component not in self.pages:
            raise LockError(f"{component!r} of this lock was released")
        indices = np.asarray([page.index for page in self.pages[component]], np.int32)
        return Segment(self.starts[component], self.tokens_held, indices)


class ToyCache(BasePrefixCache):
    """`page_size` in tokens; `geometries` and `allocators` by component name, the allocators owned by the host.

    Not final: planted faults replace single methods of it.
    """

    def __init__(self, page_size: int, geometries: Mapping[str, TreeComponent], allocators: Mapping[str, Allocator]) -> None:
        super().__init__()
        self.page_size = page_size
        self.geometries = dict(geometries)
        self.allocators = dict(allocators)
        self.pages: dict[Place, Page] = {}
        self.locks: set[Lock] = set()
        self.clock = 0
        self.owner = object()

    def match_prefix(self, ids: TokenIds, extra_key: ExtraKey = ()) -> MatchResult:
        tokens = as_token_ids(ids).tobytes()
        key = self.root(check_extra_key(extra_key))
        device = self.longest_usable(key, tokens, floor_page(len(ids), self.page_size))
        return MatchResult(Handle(self.owner, key, tokens), device, device, device)

    def lock_ref(self, match: MatchResult, length: int | None = None, *, host: bool = False) -> Lock | None:
        length = match.device_len if length is None else length
        if length % self.page_size or not 0 <= length <= match.matched_len:
            raise ValueError(f"cannot lock {length} tokens of a match of {match.matched_len}")
        assert isinstance(match.handle, Handle)
        owner, key, tokens = match.handle
        if owner is not self.owner:
            raise LockError("another cache made this match")
        if not self.is_usable(key, tokens, length):
            return None
        starts = {name: floor_page(geometry.first_needed(length), self.page_size) for name, geometry in self.geometries.items()}
        pages = {name: [self.pages[place] for place in self.needed(name, key, tokens, length)] for name in self.geometries}
        for held in pages.values():
            for page in held:
                page.locks += 1
        self.touch(key, tokens, length)
        lock = ToyLock(length, pages, starts, tuple(self.geometries))
        self.locks.add(lock)
        return lock

    def unlock_ref(self, lock: Lock, component: str | None = None) -> None:
        if lock not in self.locks:
            raise LockError("this lock was released before, or another cache made it")
        assert isinstance(lock, ToyLock)
        if component is not None and component not in lock.pages:
            raise LockError(f"{component!r} of this lock was released before")
        for name in [component] if component is not None else list(lock.pages):
            for page in lock.pages.pop(name):
                page.locks -= 1
        if component is None:
            self.locks.remove(lock)

    def insert(self, ids: TokenIds, values: Values, extra_key: ExtraKey = ()) -> InsertResult:
        tokens = as_token_ids(ids).tobytes()
        key = self.root(check_extra_key(extra_key))
        offered = self.read_values(key, tokens, values)
        length = self.longest_usable(key, tokens, len(ids), offered)
        duplicates: dict[str, list[int]] = {name: [] for name in values}
        refused: dict[str, list[int]] = {name: [] for name in values}
        for place, index in offered.items():
            if len(place[2]) > length * 4:
                refused[place[0]].append(index)
            elif place in self.pages:
                duplicates[place[0]].append(index)
            else:
                self.pages[place] = Page(index)
        self.touch(key, tokens, length)
        return InsertResult(length, _arrays(duplicates), _arrays(refused))

    def evict(self, component: str, n: int, tier: Tier = "device") -> int:
        freed = 0
        self.allocator(component, tier)
        while freed < n and (victims := self.victims(component)):
            victim = min(victims, key=lambda place: self.pages[place].clock)
            self.free(victim)
            freed += 1
            if self.geometries[component].prefix_closed:
                for name in self.geometries:
                    self.free((name, *victim[1:]))
        return freed

    def size(self, component: str, tier: Tier = "device") -> SizeInfo:
        allocator = self.allocator(component, tier)
        own = [page for (name, _, _), page in self.pages.items() if name == component]
        protected = sum(page.locks > 0 for page in own)
        requests = allocator.total - allocator.n_free - len(own)
        return SizeInfo(allocator.n_free, len(own) - protected, protected, 0, requests, allocator.total)

    def reset(self) -> bool:
        if self.locks:
            return False
        for place in list(self.pages):
            self.free(place)
        return True

    def check_integrity(self, request_owned: Mapping[str, Indices] | None = None) -> None:
        for name in self.geometries:
            own = [page.index for (component, _, _), page in self.pages.items() if component == name]
            given: list[int] = [] if request_owned is None else request_owned.get(name, NO_INDICES).tolist()
            if len({*own, *given}) != len(own) + len(given):
                raise IntegrityError(f"an index of {name!r} has two owners")
            if request_owned is not None and len(given) != self.size(name).request_owned:
                raise IntegrityError(f"requests own {len(given)} indices of {name!r}, not {self.size(name).request_owned}")

    # the steps of the above

    def root(self, extra_key: ExtraKey) -> ExtraKey:
        """What separates prefixes with equal tokens."""
        return extra_key

    def place(self, component: str, key: ExtraKey, tokens: bytes, end: int) -> Place:
        """Where the page of `component` that ends at `end` is kept."""
        return component, key, tokens[: end * 4]

    def needed(self, component: str, key: ExtraKey, tokens: bytes, length: int) -> Iterator[Place]:
        first = self.geometries[component].first_needed(length)
        ends = (end for end in range(self.page_size, length + 1, self.page_size) if end > first)
        return (self.place(component, key, tokens, end) for end in ends)

    def is_usable(self, key: ExtraKey, tokens: bytes, length: int, offered: Mapping[Place, int] | None = None) -> bool:
        more = offered or {}
        return all(place in self.pages or place in more for c in self.geometries for place in self.needed(c, key, tokens, length))

    def longest_usable(self, key: ExtraKey, tokens: bytes, limit: int, offered: Mapping[Place, int] | None = None) -> int:
        lengths = range(limit, 0, -self.page_size)
        return next((length for length in lengths if self.is_usable(key, tokens, length, offered)), 0)

    def read_values(self, key: ExtraKey, tokens: bytes, values: Values) -> dict[Place, int]:
        """The offered indices by place. Raises ValueError before anything is taken."""
        states = {name for name, geometry in self.geometries.items() if geometry.at_node_end}
        check_values(len(tokens) // 4, values, self.page_size, self.geometries, states)
        offered: dict[Place, int] = {}
        for name, segments in values.items():
            at_node_end = name in states
            for segment in segments:
                for place, index in enumerate(segment.indices.tolist()):
                    end = segment.end if at_node_end else segment.start + (place + 1) * self.page_size
                    offered[self.place(name, key, tokens, end)] = index
        return offered

    def touch(self, key: ExtraKey, tokens: bytes, length: int) -> None:
        """From last to first, so that the end of a prefix goes before its beginning."""
        for end in range(length, 0, -self.page_size):
            self.clock += 1
            for name in self.geometries:
                page = self.pages.get(self.place(name, key, tokens, end))
                if page is not None:
                    page.clock = self.clock

    def victims(self, component: str) -> list[Place]:
        """Unlocked pages; of a prefix_closed component only those after which no other comes."""
        own = [place for place in self.pages if place[0] == component]
        if self.geometries[component].prefix_closed:
            parents = {(name, key, prefix[: -4 * self.page_size]) for name, key, prefix in own}
            own = [place for place in own if place not in parents]
        return [place for place in own if not self.pages[place].locks]

    def free(self, place: Place) -> None:
        page = self.pages.pop(place, None)
        if page is not None:
            self.allocators[place[0]].free(np.asarray([page.index], np.int32))

    def allocator(self, component: str, tier: Tier) -> Allocator:
        if tier != "device":
            raise KeyError(f"there is no {tier} tier")
        return self.allocators[component]


def _arrays(indices: Mapping[str, Sequence[int]]) -> dict[str, Indices]:
    return {name: np.asarray(some, np.int32) for name, some in indices.items()}
