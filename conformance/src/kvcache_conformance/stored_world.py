"""What a host does with a cache that has storage, and what must hold: prefetches, their tickets, `persist`, and that every page
which leaves host memory is in the storage, on its way there, or counted as dropped.

It does not know how requests to the storage end: the script does.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from kvcache_conformance.claims import require
from kvcache_conformance.page_content import page_content
from kvcache_conformance.reference_model import PageKey, PrefixModel
from kvcache_conformance.storage_script import StorageScript, payload_of
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.locks import Refused, Ticket
from kvcache_core.contracts.results import PersistReport
from kvcache_core.contracts.tokens import ExtraKey


@dataclass(slots=True, eq=False)
class Prefetch:
    """A ticket, and what was asked."""

    ticket: Ticket
    tokens: bytes
    extra_key: ExtraKey
    cancelled: bool = False
    forgotten: bool = False


@final
class StoredWorld:
    """The storage's side of a `TieredWorld`. `persists`: whether the configuration writes at all."""

    def __init__(self, cache: BasePrefixCache, script: StorageScript, *, persists: bool) -> None:
        self.script = script
        self.events: Counter[str] = Counter()
        self.running: list[Prefetch] = []
        self._cache = cache
        self._persists = persists
        self._dropped = 0
        self._postponed = 0

    def prefetch(self, ids: list[int], extra_key: ExtraKey) -> Prefetch | Refused:
        before = len(self.script.pending)
        answer = self._cache.prefetch(np.asarray(ids, np.int32), extra_key)
        if isinstance(answer, Refused):
            require(len(self.script.pending) == before, f"a prefetch was refused ({answer.name}) and yet asks")
            self.events[f"prefetch refused: {answer.name}"] += 1
            return answer
        require(answer.lock is None and not answer.done, "a prefetch has no lock and has asked for something")
        require(len(self.script.pending) == before + 1, "a prefetch asks once")
        prefetch = Prefetch(answer, np.asarray(ids, np.int32).tobytes(), extra_key)
        self.running.append(prefetch)
        self.events["prefetches"] += 1
        return prefetch

    def cancel(self, prefetch: Prefetch) -> None:
        self.events["prefetch cancelled"] += not prefetch.ticket.done
        prefetch.cancelled = True
        prefetch.ticket.cancel()
        require(not prefetch.ticket.ok, "a cancelled prefetch is ok")

    def ended(self) -> int:
        """How many prefetches have ended since the last call, those that were forgotten not counted."""
        over = [prefetch for prefetch in self.running if prefetch.ticket.done]
        for prefetch in over:
            self.running.remove(prefetch)
            start, end = prefetch.ticket.span
            require(0 <= start <= end, f"a span from {start} to {end}")
            self.events["prefetch that delivered"] += end > start
            self.events["prefetch that delivered nothing"] += end == start
        return sum(not prefetch.forgotten for prefetch in over)

    def forget(self) -> None:
        """The cache was reset."""
        self.events["reset under a prefetch"] += bool(self.running)
        for prefetch in self.running:
            prefetch.forgotten = True
            require(prefetch.ticket.done and not prefetch.ticket.ok, "a reset ends prefetches without a result")
        self.ended()

    def check_lost(
        self,
        call: str,
        model: PrefixModel,
        lost: Mapping[str, Collection[PageKey]],
        copying: Mapping[str, Collection[PageKey]],
        *,
        forgets: bool,
    ) -> None:
        """`lost`: pages that left host memory in the last call. Each was stored, is being stored, or counts as dropped; one that
        the device has as well, or that is `copying` to the host again, will be offered again, and counts as postponed."""
        dropped, postponed = (sum(c.values()) for c in (self._cache.counters.dropped, self._cache.counters.postponed))
        counted, self._dropped = dropped - self._dropped, dropped
        put_off, self._postponed = postponed - self._postponed, postponed
        if forgets or not self._persists:
            return
        uncounted = kept = 0
        for name, keys in lost.items():
            remaining = {*model.resident(name).values(), *copying[name]} if keys else set[PageKey]()
            unit = 1 if model.geometries[name].at_node_end else model.page_size
            for extra_key, prefix in keys:
                held = self.script.holds(page_content(extra_key, name, prefix).tobytes())
                self.events["left L2 for L3"] += held
                if (extra_key, prefix) in remaining:
                    kept += 0 if held else unit
                else:
                    uncounted += 0 if held else unit
        require(
            uncounted <= counted, f"{call}: {uncounted} units left L2, are not in L3, and only {counted} are counted as dropped"
        )
        require(
            uncounted + kept <= counted + put_off,
            f"{call}: {kept} units left L2, are in memory still and not in L3, and only {put_off} are counted as postponed",
        )
        self.events["left L2, dropped"] += uncounted > 0
        self.events["left L2, postponed"] += kept > 0

    def check_report(self, report: PersistReport, model: PrefixModel, resident: Mapping[str, Collection[PageKey]]) -> None:
        """After `persist`: what is not in the report as remaining or dropped is in the storage."""
        if not self._persists:
            require(
                not report.stored and not report.remaining and bool(report.message), f"nothing is written, the report: {report}"
            )
            return
        known = {(name, key) for name in model.geometries for key in model.resident(name).values()}
        known |= {(name, key) for name, keys in resident.items() for key in keys}
        absent = [(n, key) for n, key in known if page_content(key[0], n, key[1]).tobytes() not in self.script.ever_stored]
        missing = report.remaining + sum((report.dropped or {}).values())
        require(len(absent) <= missing, f"persist: {len(absent)} pages are not stored, the report: {report}")
        self.events["persisted all"] += missing == 0
        self.events["persisted a part"] += missing > 0

    def lose(self, component: str, extra_key: ExtraKey, prefixes: Collection[bytes]) -> int:
        """Pages of one component that end with these prefixes are gone from the storage; returns how many were there."""
        gone = {page_content(extra_key, component, prefix).tobytes() for prefix in prefixes}
        pages = self.script.pages
        keys = [key for key, value in pages.items() if payload_of(value) in gone]
        for key in keys:
            del pages[key]
        return len(keys)

    def expected(self, tokens: bytes, extra_key: ExtraKey, model: PrefixModel, halves: Mapping[str, int]) -> int:
        """What an empty memory could get of `tokens`: by what is stored now, and fits into half of L2."""
        page = model.page_size
        for length in range(len(tokens) // 4 // page * page, 0, -page):
            if all(self._fits(name, tokens, extra_key, length, model, halves[name]) for name in model.geometries):
                return length
        return 0

    def _fits(self, name: str, tokens: bytes, extra_key: ExtraKey, length: int, model: PrefixModel, half: int) -> bool:
        ends = list(model.needed_ends(name, length))
        return len(ends) <= half and all(
            self.script.has_now(page_content(extra_key, name, tokens[: end * 4]).tobytes()) for end in ends
        )
