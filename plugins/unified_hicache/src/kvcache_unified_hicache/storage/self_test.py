"""Whether a backend does what its contract says, asked once before anyone relies on it.

A configured backend that cannot write would otherwise be a permanent miss that nobody notices. Two pages of random bytes are
stored under random keys, found, read in another order than they were written, deleted, and looked for again. A store that has
lost one server of several still works: it is tested with pages that the others take.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, cast, final

from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import HiCacheStorage, NotAllStoredError
from kvcache_core.errors import StorageError
from kvcache_unified_hicache.storage.answers import checked_flags, checked_lengths, checked_values
from kvcache_unified_hicache.storage.page_frame import PageFrame

T = TypeVar("T")

SIZES: Final = (1000, 100)
"""Bytes in the payloads of the two pages. Small, for a store may have a limit, and makes room by removing the cache's pages."""

_TRIES: Final = 10
"""With other keys each: until one of them is of a server that works, where a part of several does not."""

log = logging.getLogger(__name__)


class SelfTestStep(NamedTuple):
    """`name`: which method, and what was expected of it. `seconds`: one call."""

    name: str
    seconds: float


def self_test(backend: HiCacheStorage, timeout: float, *, read_only: bool = False) -> tuple[SelfTestStep, ...]:
    """Store, find, read and delete two pages; nothing of them is left. `timeout`: seconds for each call. `read_only`: look for
    two pages that cannot be there, and nothing else.

    Raises StorageError: names the step that failed and why. Whatever could be deleted of the pages is deleted then.
    """
    if read_only:
        test = _SelfTest(backend, timeout)
        test.look()
        return tuple(test.steps)
    for left in reversed(range(_TRIES)):
        test = _SelfTest(backend, timeout)
        try:
            test.run()
        except Exception as error:
            test.clean_up()
            if left and isinstance(error.__cause__, NotAllStoredError):
                continue
            raise
        return tuple(test.steps)
    raise AssertionError("the last try raises or returns")


@final
class _SelfTest:
    def __init__(self, backend: HiCacheStorage, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout
        self._keys = [secrets.token_hex(32) for _ in SIZES]
        self._lost: frozenset[str] = frozenset()
        self.steps: list[SelfTestStep] = []

    def look(self) -> None:
        keys, backend = self._keys, self._backend
        self._expect("exists", [False, False], lambda: checked_flags(backend.exists(keys), 2))
        self._expect("get", [None, None], lambda: checked_values(backend.get(keys), 2))

    def run(self) -> None:
        keys, backend = self._keys, self._backend
        frames = [PageFrame((PageArray("random", "uint8", (size,)),)) for size in SIZES]
        values = [_page(key, frame) for key, frame in zip(keys, frames, strict=True)]
        self._expect("exists, before", [False, False], lambda: checked_flags(backend.exists(keys), 2))
        self._step("set", lambda: self._store(values))
        stored = [key for key in keys if key not in self._lost]
        self._expect("exists", [key in stored for key in keys], lambda: checked_flags(backend.exists(keys), 2))

        def read() -> None:
            found = checked_values(backend.get(keys[::-1]), 2)
            for key, frame, value in zip(keys, frames, found[::-1], strict=True):
                if value is not None:
                    frame.open(key, value)
                elif key in stored:
                    raise StorageError("a page that was just stored is not there")

        def read_into() -> None:
            buffers = [bytearray(frame.file_bytes) for frame in frames]
            answer = backend.get_into(keys, [[memoryview(buffer)] for buffer in buffers])
            if answer is None:
                return  # it cannot, and need not
            for key, frame, buffer, nbytes in zip(keys, frames, buffers, checked_lengths(answer, 2), strict=True):
                if key in stored:
                    if nbytes != len(buffer):
                        raise StorageError(f"a page of {len(buffer)} bytes was just stored, and it answered {nbytes}")
                    frame.open(key, buffer)

        self._step("get", read)
        self._step("get_into", read_into)
        self._step("delete", lambda: backend.delete(stored))
        self._expect("exists, after", [False, False], lambda: checked_flags(backend.exists(keys), 2))
        self._expect("get, after", [None, None], lambda: checked_values(backend.get(keys), 2))

    def _store(self, values: Sequence[bytearray]) -> None:
        """Raises what the backend raises, unless a part was stored."""
        try:
            self._backend.set(self._keys, values)
        except NotAllStoredError as error:
            self._lost = error.missing.intersection(self._keys)
            if len(self._lost) == len(self._keys):
                raise
            log.warning("the storage works in part: %s", error)

    def clean_up(self) -> None:
        thread = threading.Thread(target=self._delete_quietly, name="kvcache-self-test", daemon=True)
        thread.start()
        thread.join(self._timeout)

    def _delete_quietly(self) -> None:
        # What failed before is on its way to the user, and says more.
        with suppress(Exception):
            self._backend.delete(self._keys)

    def _expect(self, name: str, expected: T, call: Callable[[], T]) -> None:
        def check() -> None:
            answer = call()
            if answer != expected:
                raise StorageError(f"it answered {_short(answer)} instead of {expected}")

        self._step(name, check)

    def _step(self, name: str, call: Callable[[], object]) -> None:
        """One call in a thread of its own: a backend that hangs must fail the start, not stall it."""
        raised: list[BaseException | None] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:  # foreign code: it may raise SystemExit as well
                raised.append(error)
            else:
                raised.append(None)

        begun = time.perf_counter()
        thread = threading.Thread(target=run, name="kvcache-self-test", daemon=True)
        thread.start()
        thread.join(self._timeout)
        seconds = time.perf_counter() - begun
        if not raised:
            raise self._failed(name, f"no answer within {self._timeout:g} s")
        if raised[0] is not None:
            raise self._failed(name, _text(raised[0])) from raised[0]
        self.steps.append(SelfTestStep(name, seconds))

    def _failed(self, name: str, why: str) -> StorageError:
        text = f"the storage backend failed its self-test at '{name}': {why}; `kvcache storage check CONFIG` repeats it"
        return StorageError(text, path=("hicache", "storage"))


def _page(key: str, frame: PageFrame) -> bytearray:
    value = frame.new_value()
    frame.payload_of(value)[:] = secrets.token_bytes(frame.payload_bytes)
    frame.seal(key, value)
    return value


def _short(answer: object) -> str:
    """Values are pages: their bytes say nothing to a reader."""
    parts = cast("list[object]", answer)
    return str([part if part is None or isinstance(part, bool) else f"{type(part).__name__} of a page" for part in parts])


def _text(error: BaseException) -> str:
    if isinstance(error, StorageError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
