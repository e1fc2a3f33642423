"""A storage backend that goes bad on demand while a host runs: it hangs, raises, lies, answers too little, or is gone.

Underneath is the toy storage; what is in it stays and can be looked at. It is offered to a registry as a plugin would be, under
the kind `faulty`, so that a host builds it from a configuration like any other.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Literal, final

from pydantic import ConfigDict

from kvcache_conformance.storage_toy import ToyDisk, ToyStorage
from kvcache_core.contracts.storage import HiCacheStorage, StorageScope, Value
from kvcache_core.registry.descriptors import PluginOptions, StorageBackendDescriptor
from kvcache_core.registry.known import Kind
from kvcache_core.registry.records import PluginRecord, PluginSource
from kvcache_core.registry.registry import Registry

Fault = Literal["hang", "raise", "lie", "short", "gone"]
FAULTS: tuple[Fault, ...] = ("hang", "raise", "lie", "short", "gone")


@final
class FaultSwitch:
    """What is wrong right now; whoever tests sets `fault`. `calls` counts calls that met a fault, by method. `release` lets
    hanging calls go: they then raise."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.calls: Counter[str] = Counter()
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def enter(self, method: str) -> Fault | None:
        """The fault that this call meets; hanging and raising ones end here."""
        fault = self.fault
        if fault is not None:
            self.calls[method] += 1
        if fault == "hang":
            self._released.wait()
            raise TimeoutError("released after it had hung")
        if fault == "raise":
            raise OSError("planted")
        return fault


class FaultyOptions(PluginOptions):
    """Objects, not values: they come from a test in the same process."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    disk: ToyDisk
    switch: FaultSwitch


@final
class FaultyStorage(HiCacheStorage):
    """`ToyStorage` behind a switch. Lying: `exists` says yes, `get` gives a page with one byte changed, `set` stores nothing.
    Short: one answer too few. Gone: the store is empty and takes nothing."""

    def __init__(self, options: FaultyOptions, scope: StorageScope) -> None:
        self._switch = options.switch
        self._toy = ToyStorage(options.disk, scope)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        fault = self._switch.enter("exists")
        if fault in ("lie", "short"):
            return [True] * (len(keys) - (fault == "short"))
        return [False] * len(keys) if fault == "gone" else self._toy.exists(keys)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        fault = self._switch.enter("get")
        if fault == "gone":
            return [None] * len(keys)
        values = self._toy.get(keys)
        if fault == "lie":
            return [None if value is None else _changed(value) for value in values]
        return values[:-1] if fault == "short" else values

    def set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        fault = self._switch.enter("set")
        if fault == "gone":
            raise FileNotFoundError("planted: the root was removed")
        if fault != "lie":
            self._toy.set(keys, values)

    def delete(self, keys: Sequence[str]) -> None:
        if self._switch.enter("delete") is None:
            self._toy.delete(keys)


def make(options: FaultyOptions, scope: StorageScope) -> FaultyStorage:
    """The factory that the descriptor names."""
    return FaultyStorage(options, scope)


def registry_with_faulty_storage() -> Registry:
    """What is installed, and the kind `faulty`."""
    descriptor = StorageBackendDescriptor(
        name="faulty", summary="goes bad on demand", factory="kvcache_conformance.faulty_storage:make", options=FaultyOptions
    )
    source = PluginSource("faulty", "kvcache_conformance.faulty_storage", "kvcache.v1", "kvcache-conformance", "0")
    record = PluginRecord(source, offers=((Kind.STORAGE, descriptor),))
    return Registry([*Registry.installed().records, record])


def _changed(value: bytes) -> bytes:
    """One byte in the middle, which belongs to the payload."""
    middle = len(value) // 2
    return value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
