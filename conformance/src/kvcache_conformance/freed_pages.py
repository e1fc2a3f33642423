"""What left a cache in one call, read from the allocators' journals: whose page it was, and whether it could go.

It keeps the model and the host tier's ledger up to date; it knows no method of a cache.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import final

from kvcache_conformance.checks import check_destinations
from kvcache_conformance.claims import Held, require
from kvcache_conformance.component_events import freed_with_its_prefix
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.pool_model import Journal
from kvcache_conformance.reference_model import TOKEN_BYTES, PageKey, PrefixModel
from kvcache_conformance.tier_ledger import TierLedger

NOTHING_OFFERED: Mapping[str, Collection[int]] = {}


@final
class FreedPages:
    """`losses`: how many calls lost data, in either tier."""

    def __init__(self, host: HostModel, model: PrefixModel, ledger: TierLedger | None) -> None:
        self.losses = 0
        self._host = host
        self._model = model
        self._ledger = ledger

    def forget(self) -> None:
        """Before a call that `learn` or `moved` is asked about afterwards."""
        self._journals()

    def moved(self) -> bool:
        """Whether any page was allocated or freed since."""
        return any(journal.taken or journal.freed for journal in self._journals().values())

    def learn(
        self,
        call: str,
        locked: Mapping[str, set[int]],
        waiting: Collection[Held],
        *,
        asked: Collection[str] = (),
        allocates: bool = False,
        offered: Mapping[str, Collection[int]] = NOTHING_OFFERED,
        forgets: bool = False,
    ) -> dict[str, list[PageKey]]:
        """After a call: the pages the cache lost, by component. `locked`: what it could not take; `waiting`: the locks of loads
        under way; `asked`: components of which it was to make room on the device; `allocates`: it may take pages, and make
        room for them; `offered`: what callers owned before; `forgets`: the call was to forget everything."""
        journals = self._journals()
        for name, pages in offered.items():
            callers = [index for index in journals[name].freed if index in pages]
            require(not callers, f"{call} freed pages {callers} of {name!r}: the cache never frees a caller's index")
        freed = {name: set(journal.freed) for name, journal in journals.items()}
        taken = {name for name, journal in journals.items() if journal.taken}
        require(allocates or not taken, f"{call} allocated pages of {taken}")
        coming = self._coming(call, journals)
        gone: dict[str, list[PageKey]] = {}
        for name, journal in journals.items():
            given_back = [index for index in journal.taken if index not in self._model.resident(name)]
            owned = [index for index in dict.fromkeys(journal.freed) if index not in coming[name] and index not in given_back]
            for index in owned:
                mine = index in self._model.resident(name)
                require(mine, f"{call} freed page {index} of {name!r}, which the cache does not own")
                require(index not in locked[name], f"{call} freed page {index} of {name!r}, which is locked")
            gone[name] = [self._model.drop(name, index) for index in owned]
        self.losses += any(gone.values())
        lost = {(name, key) for name, keys in gone.items() for key in keys}
        if self._ledger is not None:
            lost |= self._ledger.land(self._model, freed, waiting) | self._ledger.in_host()
            self.losses += self._ledger.observe(call, self._model, forgets=forgets)
            lost -= self._ledger.in_host() | self._ledger.on_its_way()
            lost -= {(name, key) for name in gone for key in self._model.resident(name).values()}
        if not forgets:
            self._judge(call, gone, {*asked, *taken}, lost)
        return gone

    def _judge(
        self, call: str, gone: Mapping[str, Sequence[PageKey]], asked: Collection[str], lost: Collection[tuple[str, PageKey]]
    ) -> None:
        """Whether pages could go that the call had not to make room of. What it lost of a prefix_closed component, from both
        tiers, takes along all that stands on it; what it freed of one alone goes with the others of the same place. `lost`: what
        is in no tier any more and was in one, or on its way there, before the call."""
        closed = [name for name, geometry in self._model.geometries.items() if geometry.prefix_closed]
        page = self._model.page_size * TOKEN_BYTES
        for name, keys in gone.items():
            if name in asked:
                continue
            require(not keys or name not in closed, f"{call} freed pages of {name!r}, of which it was to free none")
            for extra_key, prefix in keys:
                beside = any((extra_key, prefix) in gone[each] for each in closed)
                starts = [(extra_key, prefix[:end]) for end in range(page, len(prefix) + 1, page)]
                based = any((each, start) in lost for each in closed for start in starts)
                require(beside or based, f"{call} freed a page of {name!r} that could still be used")
                if self._ledger is not None and not beside:
                    self._ledger.events[freed_with_its_prefix(call)] += 1

    def _coming(self, call: str, journals: Mapping[str, Journal]) -> dict[str, set[int]]:
        """Destinations of loads, which a call may take and give back without the cache ever having them."""
        if self._ledger is None:
            return {name: set() for name in journals}
        ended = self._ledger.ended_loads()
        check_destinations(call, self._ledger.note_started(self._model), journals)
        return ended

    def _journals(self) -> dict[str, Journal]:
        return {name: allocator.journal() for name, allocator in self._host.allocators.items()}
