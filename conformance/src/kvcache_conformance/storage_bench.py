"""The place where one storage test works, and how answers are compared. It knows the contract, and neither kit nor backend."""

import hashlib
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, final

from kvcache_conformance.storage_buffers import expect_into
from kvcache_core.contracts.storage import HiCacheStorage, NotAllStoredError, StorageScope, Value

SCOPE = StorageScope(model_id="conformance", page_size=16)
"""Where a test does not choose."""

JOIN_SECONDS = 60.0
"""How long threads of a test may take before the backend counts as hanging."""


class Opens(Protocol):
    """What the bench needs of a kit."""

    def open_storage(self, place: Path, scope: StorageScope) -> HiCacheStorage: ...
    def open_limited(self, place: Path, scope: StorageScope, max_bytes: int) -> HiCacheStorage: ...


@final
class StorageBench:
    """One store in a place of its own, and everything that a test opens there. A context that closes it all."""

    def __init__(self, kit: Opens, folder: Path) -> None:
        """`folder` is the test's; the place is inside, so that what is written beside it is seen."""
        self._kit = kit
        self._open: list[HiCacheStorage] = []
        self.folder = folder
        self.place = folder / "around" / "place"
        self.place.mkdir(parents=True)

    def open(self, scope: StorageScope = SCOPE) -> HiCacheStorage:
        """One more opener of the store."""
        return self._keep(self._kit.open_storage(self.place, scope))

    def open_limited(self, max_bytes: int, scope: StorageScope = SCOPE) -> HiCacheStorage:
        """One that keeps at most `max_bytes`."""
        return self._keep(self._kit.open_limited(self.place, scope, max_bytes))

    def close(self, storage: HiCacheStorage) -> None:
        self._open.remove(storage)
        storage.close()

    def beside_the_place(self) -> list[str]:
        """What lies in the folders around the place, and should not."""
        around = self.place.parent
        found = [path for folder in (self.folder, around) for path in folder.iterdir()]
        return sorted(path.name for path in found if path not in (around, self.place))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._open:
            self._open.pop().close()

    def _keep(self, storage: HiCacheStorage) -> HiCacheStorage:
        self._open.append(storage)
        return storage


def new_keys(n: int) -> list[str]:
    """Keys that were never used, in random order: a store that is not empty disturbs no test."""
    return [secrets.token_hex(32) for _ in range(n)]


def content(nbytes: int, salt: int = 0) -> bytes:
    """`nbytes` that look random; another `salt` gives others."""
    return hashlib.shake_128(f"{nbytes} {salt}".encode()).digest(nbytes)


def expect_exists(storage: HiCacheStorage, keys: Sequence[str], wanted: Sequence[bool]) -> None:
    """Ask `exists`, and compare types, number, order and content of the answers."""
    _compare("exists", keys, storage.exists(keys), wanted, (bool,))


def expect_get(storage: HiCacheStorage, keys: Sequence[str], wanted: Sequence[bytes | None]) -> None:
    """Ask `get`, and compare types, number, order and content of the answers."""
    _compare("get", keys, storage.get(keys), wanted, (bytes, type(None)))


def expect_pages(storage: HiCacheStorage, keys: Sequence[str], wanted: Sequence[bytes | None]) -> None:
    """`exists`, `get` and, where it is offered, `get_into` say that these are the pages."""
    expect_exists(storage, keys, [value is not None for value in wanted])
    expect_get(storage, keys, wanted)
    expect_into(storage, keys, wanted)


def set_or_refuse(storage: HiCacheStorage, keys: Sequence[str], values: Sequence[Value]) -> None:
    """`set` of new keys that the backend may refuse in whatever words. Where it says which are stored, that must be true."""
    try:
        storage.set(keys, values)
    except NotAllStoredError as error:
        expect_missing(storage, keys, error)
    except Exception:
        # Refused as a whole, with whatever a backend raises: the caller looks at what is there.
        return


def expect_missing(storage: HiCacheStorage, keys: Sequence[str], error: NotAllStoredError) -> None:
    """What `set` raised for a batch of the new `keys` names exactly those that are not there."""
    said = "set raised NotAllStoredError, and `missing`"
    assert error.missing, f"{said} is empty: it must name the pages that are not stored"
    unknown = error.missing.difference(keys)
    assert not unknown, f"{said} names {min(unknown)!r}, which is no key of the batch"
    gone = {key for key, there in zip(keys, storage.exists(keys), strict=True) if not there}
    assert gone <= error.missing, f"{said} leaves out {len(gone - error.missing)} of {len(gone)} pages that are not there"
    assert error.missing <= gone, f"{said} names {len(error.missing - gone)} pages that are there"


def _compare(call: str, keys: Sequence[str], found: list[Any], wanted: Sequence[object], types: tuple[type, ...]) -> None:
    # By hand: pytest's own comparison of two values of a megabyte takes long and fills the screen.
    assert type(found) is list, f"{call} gave a {type(found).__name__}, not a list"
    assert len(found) == len(keys), f"{call} gave {len(found)} answers for {len(keys)} keys"
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        assert type(got) in types, f"{call} gave a {type(got).__name__} for key {number} of {len(keys)}"
        assert got == want, f"{call} gave {shown(got)} for key {number} of {len(keys)}, not {shown(want)}"


def shown(value: object) -> str:
    """A value for people: length and beginning of bytes."""
    if not isinstance(value, bytes):
        return repr(value)
    return f"{len(value)} bytes" + (f" ({value[:8].hex(' ')}{' ...' if len(value) > 8 else ''})" if value else "")


def in_threads(*jobs: Callable[[], None]) -> None:
    """Start all jobs at once, each in a thread of its own, and wait for them.

    Raises:
        AssertionError: one did not end.
        BaseException: what a job raised, the first of them.
    """
    start = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def work(job: Callable[[], None]) -> None:
        try:
            start.wait(JOIN_SECONDS)
            job()
        except BaseException as error:  # handed to the test's own thread
            errors.append(error)

    # Daemons: a backend that hangs must not keep the interpreter.
    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    assert not any(thread.is_alive() for thread in threads), f"a thread did not end within {JOIN_SECONDS:.0f} s"
    if errors:
        raise errors[0]
