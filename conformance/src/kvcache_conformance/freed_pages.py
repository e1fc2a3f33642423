"""What left a cache in one call, read from the allocators' journals: whose page it was, and whether it could go.

It keeps the model and the host tier's ledger up to date; it knows no method of a cache.
"""

from collections.abc import Collection, Mapping
from typing import final

from kvcache_conformance.checks import check_destinations
from kvcache_conformance.claims import Held, require
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.pool_model import Journal
from kvcache_conformance.reference_model import PageKey, PrefixModel
from kvcache_conformance.tier_ledger import TierLedger


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

    def learn_insert(
        self, offered: Mapping[str, Collection[int]], locked: Mapping[str, set[int]], waiting: Collection[Held]
    ) -> None:
        """After an insert, what it adopted noted: it takes no page and frees none of a caller's. To make room in host memory for
        the copies it starts, it may free its own, and then nothing but what can no longer be used: its prefix left that memory.
        """
        journals = self._journals()
        for name, journal in journals.items():
            require(not journal.taken, f"insert allocated pages of {name!r}")
            callers = [index for index in journal.freed if index in offered.get(name, ())]
            require(not callers, f"insert freed pages {callers} of {name!r}: the cache never frees a caller's index")
        gone = self._learn("insert", journals, locked, waiting, False)
        for name, keys in gone.items():
            useless = self._ledger is not None and all(self._ledger.lost_its_prefix(key, self._model) for key in keys)
            require(useless or not keys, f"insert freed pages of {name!r} of its own that could still be used")

    def learn(
        self, call: str, locked: Mapping[str, set[int]], waiting: Collection[Held], *, forgets: bool = False
    ) -> dict[str, list[PageKey]]:
        """After a call that may free: the pages the cache lost, by component. `locked`: what it could not take; `waiting`: the
        locks of loads under way; `forgets`: the call was to forget everything."""
        return self._learn(call, self._journals(), locked, waiting, forgets)

    def _learn(
        self,
        call: str,
        journals: Mapping[str, Journal],
        locked: Mapping[str, set[int]],
        waiting: Collection[Held],
        forgets: bool,
    ) -> dict[str, list[PageKey]]:
        freed = {name: set(journal.freed) for name, journal in journals.items()}
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
        if self._ledger is not None:
            self._ledger.land(self._model, freed, waiting)
            self.losses += self._ledger.observe(call, self._model, forgets=forgets)
        return gone

    def _coming(self, call: str, journals: Mapping[str, Journal]) -> dict[str, set[int]]:
        """Destinations of loads, which a call may take and give back without the cache ever having them."""
        ledger = self._ledger
        if ledger is None:
            require(not any(journal.taken for journal in journals.values()), f"{call} allocated")
            return {name: set() for name in journals}
        ended = ledger.ended_loads()
        check_destinations(call, ledger.note_started(self._model), journals)
        return ended

    def _journals(self) -> dict[str, Journal]:
        return {name: allocator.journal() for name, allocator in self._host.allocators.items()}
