"""L2 -> L3: which pages of host memory are handed to the storage, and what is known of them afterwards.

The source is captured in the call, so a slot may be freed right after it. A page counts as stored when the storage says so, never
before; what was refused or failed stays unmarked and is offered again the next time. When that is, only the cache knows.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast, final

import numpy as np

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.results import Indices
from kvcache_core.contracts.storage import Value
from kvcache_radix.node import DIGEST_BYTES, Node
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.guarded_store import GuardedStore
from kvcache_unified_hicache.node_digests import NodeDigests
from kvcache_unified_hicache.page_bytes import CapturedBytes, PageBytes
from kvcache_unified_hicache.page_marks import ABSENT, GOING, STORED, PageMarks
from kvcache_unified_hicache.reasons import Reasons
from kvcache_unified_hicache.storage.page_frame import PageFrame
from kvcache_unified_hicache.storage.page_keys import storage_keys

log = logging.getLogger(__name__)

REQUEST_BYTES: Final = 16 << 20
"""Of pages in one request to the guard: its values exist twice while they are assembled."""


@final
class Persists:
    """`frames`, `identities`: by component number. `max_bytes`: of pages on their way at a time; the rest of what the guard takes
    is left to fetches, which somebody waits for."""

    def __init__(
        self,
        store: NodeStore,
        guard: GuardedStore,
        digests: NodeDigests,
        frames: Sequence[PageFrame],
        identities: Sequence[bytes],
        page_bytes: PageBytes,
        counters: CacheCounters,
        max_bytes: int,
    ) -> None:
        self._store = store
        self._guard = guard
        self._digests = digests
        self._frames = tuple(frames)
        self._identities = tuple(identities)
        self._page_bytes = page_bytes
        self._counters = counters
        self._max_bytes = max_bytes
        self._bytes = 0
        self.stored_pages = 0

    @property
    def idle(self) -> bool:
        """Nothing is on its way."""
        return not self._bytes

    def is_stored(self, node: Node, c: int) -> bool:
        """Whether the storage has said that it has all of the node's data of this component."""
        marks = _marks(node, c)
        return marks is not None and marks.all_stored(*self._range(node, c, marks))

    def is_going(self, node: Node, c: int) -> bool:
        marks = _marks(node, c)
        return marks is not None and marks.going(*self._range(node, c, marks))

    def units(self, node: Node, c: int) -> int:
        """Pages, or the one unit, that a node has of a component."""
        return 1 if self._store.geometries[c].at_node_end else (node.end - node.start) // self._store.page_size

    def offer(self, node: Node, c: int, *, last: bool) -> None:
        """`start`, and what is refused is counted: as given up when this is the `last` occasion, because the data leaves memory
        now; as postponed when it stays, and will be offered again."""
        reason = self.start(node, c)
        marks = _marks(node, c)
        if marks is None:
            return
        first, n = self._range(node, c, marks)
        if last:
            marks.leave(first, n)
        if reason is not None:
            counter = self._counters.dropped if last else self._counters.postponed
            counter[reason] += len(marks.absent(first, n)) * self._tokens(c)

    def start(self, node: Node, c: int) -> str | None:
        """Hand what the host has of the node to the storage, except what is there or on its way. Returns why some of it was
        refused, None when nothing was."""
        cell = node.cells[c]
        if cell.host is None:
            return None
        marks = _marks(node, c)
        if marks is None:
            marks = cell.stored = PageMarks(node.start, self.units(node, c), self._store.page_size)
        first, n = self._range(node, c, marks)
        absent = marks.absent(first, n)
        if not absent:
            return None
        digests = self._digests.of(node)
        if self._store.geometries[c].at_node_end:
            digests = digests[-DIGEST_BYTES:]
        slots = np.frombuffer(cell.host, np.int32)
        frame = self._frames[c]
        most = max(1, REQUEST_BYTES // frame.file_bytes)
        for at in range(0, len(absent), most):
            places = absent[at : at + most]
            rows = [place - first for place in places]
            reason = self._send(c, digests, slots, rows, marks, places)
            if reason is not None:
                return reason
        return None

    def _send(self, c: int, digests: bytes, slots: Indices, rows: list[int], marks: PageMarks, places: list[int]) -> str | None:
        frame = self._frames[c]
        nbytes = len(rows) * frame.file_bytes
        if self._bytes and self._bytes + nbytes > self._max_bytes:
            return Reasons.TOO_MANY_BYTES_TO_L3
        named = b"".join([digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES] for row in rows])
        keys = storage_keys(named, self._identities[c])
        try:
            captured = self._page_bytes.capture(c, slots[rows])
        except Exception:
            # Whoever evicts or inserts goes on without the copy in storage.
            if not self._counters.dropped[Reasons.NOT_CAPTURED] + self._counters.postponed[Reasons.NOT_CAPTURED]:
                log.exception("pages in host memory could not be read for the storage")
            return Reasons.NOT_CAPTURED

        def done(answers: list[bool]) -> None:
            self._bytes -= nbytes
            self._answered(c, marks, places, answers)

        if not self._guard.store(keys, frame.file_bytes, _sealed(frame, keys, captured), done):
            return Reasons.UNAVAILABLE if self._guard.refuses("write") else Reasons.TOO_MANY_BYTES_TO_L3
        self._bytes += nbytes
        marks.set(places, GOING)
        return None

    def _answered(self, c: int, marks: PageMarks, places: list[int], answers: list[bool]) -> None:
        marks.set([place for place, ok in zip(places, answers, strict=True) if ok], STORED)
        failed = [place for place, ok in zip(places, answers, strict=True) if not ok]
        gone = sum(map(marks.leaving, failed))
        marks.set(failed, ABSENT)
        stored = len(places) - len(failed)
        self.stored_pages += stored
        self._counters.storage_written_tokens += stored * self._tokens(c)
        if gone:
            self._counters.dropped[Reasons.NOT_STORED] += gone * self._tokens(c)
        if len(failed) > gone:
            self._counters.postponed[Reasons.NOT_STORED] += (len(failed) - gone) * self._tokens(c)

    def _range(self, node: Node, c: int, marks: PageMarks) -> tuple[int, int]:
        if self._store.geometries[c].at_node_end:
            return 0, 1
        return marks.place(node.start), (node.end - node.start) // self._store.page_size

    def _tokens(self, c: int) -> int:
        return 1 if self._store.geometries[c].at_node_end else self._store.page_size


def _marks(node: Node, c: int) -> PageMarks | None:
    return cast("PageMarks | None", node.cells[c].stored)


def _sealed(frame: PageFrame, keys: Sequence[str], captured: CapturedBytes) -> Callable[[], Sequence[Value]]:
    """The work of a worker: the pages' values."""

    def make() -> Sequence[Value]:
        values = [frame.new_value() for _ in keys]
        captured.write_into([frame.payload_of(value) for value in values])
        for key, value in zip(keys, values, strict=True):
            frame.seal(key, value)
        return values

    return make
