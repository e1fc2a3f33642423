"""One request under the scheduler protocol, step by step as the contract's section 2 has it, with the forward done by value.

It reads every page it depends on before it computes, through its own page table, so a page freed or given away too early is
noticed there. It decides neither when to run nor whom to preempt: tests and the state machine do.
"""

from typing import final

import numpy as np

from kvcache_conformance.checked_cache import CheckedCache
from kvcache_conformance.claims import Held, Match, require
from kvcache_conformance.page_content import page_content
from kvcache_core.contracts.results import NO_INDICES, InsertResult, Segment, Values
from kvcache_core.contracts.tokens import ExtraKey, floor_page

HOLE = 0
"""A page table entry that is never read: behind a window, or of a component that keeps a state."""


@final
class RequestModel:
    """`prompt`: int32 tokens as a list, which decoding extends."""

    def __init__(self, world: CheckedCache, prompt: list[int], extra_key: ExtraKey = ()) -> None:
        assert prompt, "a request has at least one token"
        self.world = world
        self.tokens = list(prompt)
        self.extra_key = extra_key
        self.computed = 0
        self.hits = 0
        """Tokens taken from the cache at admissions."""
        self.duplicates = 0
        """Own pages whose place had been taken when they were offered."""
        self._page = world.host.page_size
        self._interval = world.host.snapshot_interval
        self._prompt_len = len(prompt)
        geometries = world.host.geometries
        self._paged = {name: geometry for name, geometry in geometries.items() if not geometry.at_node_end}
        self._stateful = [name for name, geometry in geometries.items() if geometry.at_node_end]
        self._tables: dict[str, list[int]] = {name: [] for name in self._paged}
        self._running: dict[str, int] = {}
        self._snapshots: dict[str, dict[int, int]] = {name: {} for name in self._stateful}
        """By component and position, the slot of each state that is kept to be offered."""
        self._held: Held | None = None

    @property
    def admitted(self) -> bool:
        return self._held is not None

    @property
    def to_compute(self) -> int:
        """Tokens known and not yet computed."""
        return len(self.tokens) - self.computed

    def admit(self) -> bool:
        """Match, lock, allocate what a state needs. False, with nothing held, where there is no room."""
        held = self.world.lock(self.find())
        assert held is not None, "a match made in the same moment is not stale"
        return self.start(held)

    def find(self) -> Match:
        """What an admission asks for: all but the last token, whose forward gives the first logits."""
        return self.world.match(self._ids()[:-1], self.extra_key)

    def start(self, held: Held) -> bool:
        """Run on what `held`, which is the request's from now on, delivers. False, with nothing held, where there is no room."""
        world = self.world
        assert self._held is None and not self.computed
        for name in self._stateful:
            slot = self._alloc(name, 1)
            if not slot:
                self._free_own()
                self._running.clear()
                world.unlock(held)
                return False
            self._running[name] = slot[0]
        self._held = held
        self._prompt_len = len(self.tokens)
        self.computed = held.length
        self.hits += held.length
        self._remap(held)
        for name, slot in self._running.items():
            # The content of the locked state was just checked: this is its copy.
            world.write(name, slot, self.extra_key, self._prefix(self.computed))
        return True

    def compute(self, n: int) -> bool:
        """The forward of up to `n` known tokens. False, with nothing computed, when the pages for them cannot be had."""
        end = min(self.computed + n, len(self.tokens))
        for name, table in self._tables.items():
            missing = -(-end // self._page) - len(table)
            pages = self._alloc(name, missing) if missing > 0 else []
            if pages is None:
                return False
            table += pages
        self._read()
        for boundary in self._boundaries(end):
            for name in self._stateful:
                self._snapshot(name, boundary)
        for name, table in self._tables.items():
            for at in range(self.computed // self._page, -(-end // self._page)):
                self.world.write(name, table[at], self.extra_key, self._prefix(min(end, (at + 1) * self._page)))
        self.computed = end
        for name, slot in self._running.items():
            self.world.write(name, slot, self.extra_key, self._prefix(end))
        self._leave_windows()
        return True

    def chunk_done(self) -> None:
        """Offer whole pages, read what the cache has from now on, then free duplicates, then let the old lock go."""
        world, old = self.world, self._held
        assert old is not None
        end = floor_page(self.computed, self._page)
        if end <= old.length:
            return
        values = self._values(end)
        result = world.insert(self._ids()[:end], values, self.extra_key)
        if result.length <= old.length:
            require(not any(map(len, result.duplicates.values())), "all that lies beyond the old lock is refused, none duplicate")
            return
        held = world.lock(world.match(self._ids()[: result.length], self.extra_key))
        assert held is not None and held.length == result.length
        self._held = held
        self._remap(held)
        self._drop_snapshots(result)
        for name, indices in result.duplicates.items():
            self.duplicates += len(indices)
            world.free(name, indices)
        world.unlock(old)
        self._leave_windows()

    def append(self, token: int) -> None:
        """A sampled token: it is computed in the next forward."""
        assert self.to_compute == 0
        self.tokens.append(token)

    def finish(self) -> None:
        """Offer what was computed, free the rest, unlock. Also how a running request is preempted: admit it again later."""
        world, held = self.world, self._held
        assert held is not None
        end = floor_page(self.computed, self._page)
        if end > held.length:
            result = world.insert(self._ids()[:end], self._values(end), self.extra_key)
            self.duplicates += sum(map(len, result.duplicates.values()))
        self._free_own()
        world.unlock(held)
        self._end()

    def abort(self) -> None:
        """Free what is the request's own, offer nothing, unlock."""
        self._free_own()
        if self._held is not None:
            self.world.unlock(self._held)
        self._end()

    def _alloc(self, component: str, n: int) -> list[int] | None:
        """All or nothing, evicting on shortage."""
        world = self.world
        indices = world.alloc(component, n)
        if indices is None:
            world.evict(component, n - world.host.allocators[component].n_free)
            indices = world.alloc(component, n)
        return None if indices is None else indices.tolist()

    def _remap(self, held: Held) -> None:
        """All entries below the lock's end are the cache's now; those that no segment covers are never read again."""
        cut = held.length // self._page
        for name, table in self._tables.items():
            segment = self.world.segment(held, name)
            holes = [HOLE] * (segment.start // self._page)
            table[:cut] = holes + segment.indices.tolist()

    def _read(self) -> None:
        """What the next forward reads: the content must be that of this very prefix."""
        for name, geometry in self._paged.items():
            first = geometry.first_needed(self.computed) // self._page
            ends = [min(self.computed, (at + 1) * self._page) for at in range(first, -(-self.computed // self._page))]
            self._check(name, [self._tables[name][(end - 1) // self._page] for end in ends], ends)
        for name, slot in self._running.items():
            self._check(name, [slot], [self.computed])

    def _check(self, component: str, indices: list[int], ends: list[int]) -> None:
        pages = self.world.host.read(component, indices)
        for page, index, end in zip(pages, indices, ends, strict=True):
            right = page_content(self.extra_key, component, self._prefix(end))
            require(np.array_equal(page, right), f"a request reads page {index} of {component!r} for {end} tokens: wrong content")

    def _values(self, end: int) -> Values:
        assert self._held is not None
        cut = self._held.length // self._page
        values: dict[str, list[Segment]] = {}
        for name, table in self._tables.items():
            own = table[cut : end // self._page]
            start = cut + own.count(HOLE)
            indices = np.asarray(table[start : end // self._page], np.int32)
            values[name] = [Segment(start * self._page, end, indices)] if len(indices) else []
        for name, kept in self._snapshots.items():
            offered = [at for at in sorted(kept) if self._held.length < at <= end]
            values[name] = [Segment(at - self._page, at, np.asarray([kept[at]], np.int32)) for at in offered]
        return values

    def _drop_snapshots(self, result: InsertResult) -> None:
        for name, kept in self._snapshots.items():
            duplicates = result.duplicates.get(name, NO_INDICES).tolist()
            for at, slot in list(kept.items()):
                taken = slot not in self.world.request_owned[name]
                if taken or slot in duplicates:
                    del kept[at]

    def _boundaries(self, end: int) -> list[int]:
        """Where a state is left behind by a forward from `computed` to `end`, ascending. A real forward would end at each."""
        passed = {floor_page(end, self._page)}
        if self._interval:
            passed |= {floor_page(self._prompt_len - 1, self._page), *range(self._interval, end + 1, self._interval)}
        return sorted(at for at in passed if self.computed < at <= end)

    def _snapshot(self, name: str, boundary: int) -> None:
        """The last one is freed once the new one exists, unless its place is one to keep. Without room there is none."""
        slots = self._alloc(name, 1)
        if not slots:
            return
        kept = self._snapshots[name]
        for at in [at for at in kept if not self._keeps(at)]:
            self.world.free(name, np.asarray([kept.pop(at)], np.int32))
        kept[boundary] = slots[0]
        self.world.write(name, slots[0], self.extra_key, self._prefix(boundary))

    def _keeps(self, at: int) -> bool:
        return bool(self._interval) and (at % self._interval == 0 or at == floor_page(self._prompt_len - 1, self._page))

    def _leave_windows(self) -> None:
        """Own pages behind the window, and the lock's part of it, counted from the aligned position, where a match may end."""
        assert self._held is not None
        for name, geometry in self._paged.items():
            first = geometry.first_needed(floor_page(self.computed, self._page))
            if geometry.prefix_closed:
                continue
            cut, stop = self._held.length // self._page, first // self._page
            left = [at for at in range(cut, min(stop, len(self._tables[name]))) if self._tables[name][at] != HOLE]
            if left:
                self.world.free(name, np.asarray([self._tables[name][at] for at in left], np.int32))
                for at in left:
                    self._tables[name][at] = HOLE
            if name in self._held.parts and 0 < self._held.length <= first:
                self.world.unlock(self._held, name)

    def _free_own(self) -> None:
        world = self.world
        slots = {name: [slot] for name, slot in self._running.items()}
        for name, kept in self._snapshots.items():
            slots[name] = [*slots.get(name, []), *kept.values()]
        cut = 0 if self._held is None else self._held.length // self._page
        for name, own in [*slots.items(), *((name, table[cut:]) for name, table in self._tables.items())]:
            # What insert took is no longer in the ledger of the requests.
            mine = [index for index in own if index in world.request_owned[name]]
            if mine:
                world.free(name, np.asarray(mine, np.int32))

    def _end(self) -> None:
        self._held = None
        self.computed = 0
        self._tables = {name: [] for name in self._paged}
        self._running.clear()
        self._snapshots = {name: {} for name in self._stateful}

    def _ids(self) -> np.ndarray:
        return np.asarray(self.tokens, np.int32)

    def _prefix(self, end: int) -> bytes:
        return self._ids()[:end].tobytes()
