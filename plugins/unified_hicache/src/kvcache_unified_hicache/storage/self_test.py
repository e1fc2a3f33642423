"""Whether a backend does what its contract says, asked once before anyone relies on it.

A configured backend that cannot write would otherwise be a permanent miss that nobody notices. Two pages of random bytes are
stored under random keys, found, read in another order than they were written, deleted, and looked for again.
"""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, cast, final

from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_core.errors import StorageError
from kvcache_unified_hicache.storage.answers import checked_flags, checked_values
from kvcache_unified_hicache.storage.page_frame import PageFrame

T = TypeVar("T")

SIZES: Final = (1000, 100)
"""Bytes in the payloads of the two pages. Small, for a store may have a limit, and makes room by removing the cache's pages."""


class SelfTestStep(NamedTuple):
    """`name`: which method, and what was expected of it. `seconds`: one call."""

    name: str
    seconds: float


def self_test(backend: HiCacheStorage, timeout: float) -> tuple[SelfTestStep, ...]:
    """Store, find, read and delete two pages; nothing of them is left. `timeout`: seconds for each call.

    Raises StorageError: names the step that failed and why. Whatever could be deleted of the pages is deleted then.
    """
    test = _SelfTest(backend, timeout)
    try:
        test.run()
    except Exception:
        test.clean_up()
        raise
    return tuple(test.steps)


@final
class _SelfTest:
    def __init__(self, backend: HiCacheStorage, timeout: float) -> None:
        self._backend = backend
        self._timeout = timeout
        self._keys = [secrets.token_hex(32) for _ in SIZES]
        self.steps: list[SelfTestStep] = []

    def run(self) -> None:
        keys, backend = self._keys, self._backend
        frames = [PageFrame((PageArray("random", "uint8", (size,)),)) for size in SIZES]
        values = [_page(key, frame) for key, frame in zip(keys, frames, strict=True)]
        self._expect("exists, before", [False, False], lambda: checked_flags(backend.exists(keys), 2))
        self._step("set", lambda: backend.set(keys, values))
        self._expect("exists", [True, True], lambda: checked_flags(backend.exists(keys), 2))

        def read() -> None:
            found = checked_values(backend.get(keys[::-1]), 2)
            for key, frame, value in zip(keys, frames, found[::-1], strict=True):
                if value is None:
                    raise StorageError("a page that was just stored is not there")
                frame.open(key, value)

        self._step("get", read)
        self._step("delete", lambda: backend.delete(keys))
        self._expect("exists, after", [False, False], lambda: checked_flags(backend.exists(keys), 2))
        self._expect("get, after", [None, None], lambda: checked_values(backend.get(keys), 2))

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
