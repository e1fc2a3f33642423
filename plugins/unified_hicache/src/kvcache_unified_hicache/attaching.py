"""What has arrived from storage becomes the tree's, like an insert: as far as it is usable now, and the rest is freed.

The length is chosen here for the second time, by what arrived and what memory still has. What is attached counts as just used.
"""

import logging
from collections.abc import Callable
from typing import final

import numpy as np

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.results import Indices, Segment
from kvcache_radix.node import Node
from kvcache_radix.tree import RadixTree
from kvcache_unified_hicache.fetch import Fetch, Request
from kvcache_unified_hicache.page_bytes import PageBytes
from kvcache_unified_hicache.page_marks import STORED, PageMarks
from kvcache_unified_hicache.prefix_pages import Flags, either
from kvcache_unified_hicache.reasons import Reasons

log = logging.getLogger(__name__)


@final
class Attaching:
    """`free(c, slots)` gives host slots back."""

    def __init__(
        self, tree: RadixTree, page_bytes: PageBytes, free: Callable[[int, Indices], None], counters: CacheCounters
    ) -> None:
        self._tree = tree
        self._geometries = tree.store.geometries
        self._page_bytes = page_bytes
        self._free = free
        self._counters = counters

    def land(self, fetch: Fetch) -> None:
        """Put what came into its slots. What the host pool cannot take, for want of memory, has not come; it is counted."""
        for request in fetch.requests or ():
            if request.arrival is None or not any(request.came):
                continue
            slots = np.asarray([slot for slot, ok in zip(request.slots.tolist(), request.came, strict=True) if ok], np.int32)
            try:
                self._page_bytes.land(request.c, slots, request.arrival)
            except Exception:
                # Nothing that storage brings may end a request: the tokens are computed.
                if not self._counters.misses[Reasons.NOT_LANDED]:
                    log.exception("pages from storage could not be put into host memory")
                self._counters.misses[Reasons.NOT_LANDED] += len(slots)
                request.answer(None)

    def attach(self, fetch: Fetch, arrived: Flags) -> None:
        """`arrived`: what came and landed, on every rank. All slots of the fetch are the tree's or free afterwards;
        its span is set."""
        pages = fetch.pages
        before = self._tree.match(pages.view, pages.extra_key).host_len
        length = pages.usable(either(pages.resident(), arrived), fetch.length)
        values: dict[str, list[Segment]] = {}
        kept: list[dict[int, int]] = [{} for _ in self._geometries]
        for request in fetch.requests or ():
            self._count(request)
            kept[request.c].update(
                (page, slot)
                for page, slot, ok in zip(request.pages, request.slots.tolist(), request.came, strict=True)
                if ok and arrived[request.c][page] and pages.ends[page] <= length
            )
        for c, slots in enumerate(kept):
            if slots:
                values[self._geometries[c].name] = self._segments(c, slots)
        taken: list[set[int]] = [set() for _ in self._geometries]
        if length:
            result = self._tree.insert_host(pages.view[:length], values, pages.extra_key)
            assert result.length == length, "the tree finds usable what was found usable"
            for c, geometry in enumerate(self._geometries):
                left = {*result.duplicates[geometry.name].tolist(), *result.refused[geometry.name].tolist()}
                taken[c] = set(kept[c].values()) - left
            self._mark(fetch, arrived, length)
        for request in fetch.requests or ():
            self._free(request.c, np.asarray([slot for slot in request.slots.tolist() if slot not in taken[request.c]], np.int32))
        starts = [before] if length > before else []
        starts += [max(other.span[0], fetch.asked_len) for other in fetch.waits_for if other.span[1] > other.span[0]]
        if starts and min(starts) < length:
            fetch.span = (min(starts), length)

    def _segments(self, c: int, slots: dict[int, int]) -> list[Segment]:
        page = self._tree.page_size
        numbers = sorted(slots)
        if self._geometries[c].at_node_end:
            return [Segment(n * page, (n + 1) * page, np.asarray([slots[n]], np.int32)) for n in numbers]
        cuts = [i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1]
        runs = [numbers[a:b] for a, b in zip([0, *cuts], [*cuts, len(numbers)], strict=True)]
        return [Segment(run[0] * page, (run[-1] + 1) * page, np.asarray([slots[n] for n in run], np.int32)) for run in runs]

    def _mark(self, fetch: Fetch, arrived: Flags, length: int) -> None:
        """The storage has what it just gave."""
        page = self._tree.page_size
        node = self._tree.match(fetch.pages.view[:length], fetch.pages.extra_key).handle
        while isinstance(node, Node) and node.parent is not None:
            first, last = node.parent.end // page, min(node.end, length) // page
            for c, (geometry, cell) in enumerate(zip(self._geometries, node.cells, strict=True)):
                numbers = range(last - 1, last) if geometry.at_node_end else range(first, last)
                came = [n for n in numbers if arrived[c][n]]
                if not came or (geometry.at_node_end and node.end > length):
                    continue
                marks = cell.stored
                if marks is None:
                    marks = cell.stored = PageMarks(node.start, 1 if geometry.at_node_end else last - first, page)
                assert isinstance(marks, PageMarks)
                marks.set([marks.place(n * page) for n in came], STORED)
            node = node.parent

    def _count(self, request: Request) -> None:
        tokens = 1 if self._geometries[request.c].at_node_end else self._tree.page_size
        self._counters.storage_loaded_tokens += sum(request.came) * tokens
