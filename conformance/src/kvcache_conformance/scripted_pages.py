"""What the storage of a `StorageScript` reads and writes in host memory: the slots of a `TransferScript`, as values.

It stands in for a cache's access to the pages of its host pools, and implements its protocol structurally. It knows no keys, no
tree and no tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from kvcache_conformance.claims import require
from kvcache_conformance.page_content import BYTES, LAYERS, Content
from kvcache_conformance.storage_script import StorageScript
from kvcache_conformance.transfer_script import TransferScript
from kvcache_core.contracts.results import Indices


class Arrival(Protocol):
    """What a cache makes of the pages of one request."""

    @property
    def came(self) -> Sequence[bool]: ...

    @property
    def batch(self) -> Any: ...


class ScriptedArrival(NamedTuple):
    """`batch`: the content of each page that came, in their order."""

    came: Sequence[bool]
    batch: Any


@final
class ScriptedRoom:
    """Keeps what is brought. It takes every page as a whole."""

    def __init__(self) -> None:
        self._pages: dict[int, Content] = {}

    def parts(self, number: int) -> Sequence[memoryview] | None:
        return None

    def place(self, number: int, payload: memoryview) -> None:
        require(number not in self._pages, "a page is brought once")
        self._pages[number] = np.frombuffer(bytes(payload), np.uint8).reshape(LAYERS, BYTES)

    def finish(self, came: Sequence[bool]) -> ScriptedArrival:
        return ScriptedArrival(came, [self._pages[number] for number, ok in enumerate(came) if ok])


class _Copied:
    def __init__(self, pages: Sequence[Content]) -> None:
        self._pages = [page.tobytes() for page in pages]

    def write_into(self, outputs: Sequence[memoryview]) -> None:
        for page, output in zip(self._pages, outputs, strict=True):
            output[:] = page


@final
class ScriptedPageBytes:
    """Access to the slots of a `TransferScript`; `names`: the components by number."""

    def __init__(self, transfers: TransferScript, storage: StorageScript, names: Sequence[str]) -> None:
        self._transfers = transfers
        self._storage = storage
        self._names = tuple(names)

    def capture(self, c: int, slots: Indices) -> _Copied:
        places = [(self._names[c], slot) for slot in slots.tolist()]
        missing = [place for place in places if place not in self._transfers.slots]
        require(not missing, f"a store reads {missing}, which nothing ever reached")
        return _Copied([self._transfers.slots[place].copy() for place in places])

    def room(self, c: int, n: int) -> ScriptedRoom:
        return ScriptedRoom()

    def land(self, c: int, slots: Indices, arrival: Arrival) -> None:
        require(len(slots) == len(arrival.batch) == sum(arrival.came), "one slot for each page that came")
        for slot, page in zip(slots.tolist(), arrival.batch, strict=True):
            self._transfers.slots[self._names[c], slot] = page
            self._storage.landed.add((self._names[c], slot))
