"""An installed backend opened in another process. What is here is imported there again, so it knows neither pytest nor tests."""

import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from kvcache_core.contracts.storage import HiCacheStorage, StorageScope
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.loading import load_target

LIMIT_SECONDS = 300.0
"""How long another process may take, its start included: on a machine that does much else, and 20 kills are many starts."""


class StorageOpener(NamedTuple):
    """An installed backend by its name, with its options as they stand in a configuration."""

    kind: str
    options: Mapping[str, Any]
    scope: StorageScope

    def open(self) -> HiCacheStorage:
        """As the core opens it. Raises what the lookup, the validation of the options and the backend raise."""
        offer = default_registry().storage(self.kind)
        options = offer.descriptor.options.model_validate(dict(self.options))
        return load_target(offer.descriptor.factory, offer.source)(options, self.scope)


def store_pages(opener: StorageOpener, keys: Sequence[str], values: Sequence[bytes]) -> None:
    """Open, set, close."""
    storage = opener.open()
    storage.set(keys, values)
    storage.close()


def fetch_pages(opener: StorageOpener, keys: Sequence[str]) -> list[bytes | None]:
    """Open, get, close."""
    storage = opener.open()
    found = storage.get(keys)
    storage.close()
    return found


def write_and_read(
    opener: StorageOpener, keys: Sequence[str], values: Sequence[bytes], rounds: int, other: str
) -> tuple[bytes | None, list[bytes | None]]:
    """Set every key to each value in turn, `rounds` times; gives the value of `other` before, and all that was read meanwhile."""
    storage = opener.open()
    (at_first,) = storage.get([other])
    found: list[bytes | None] = []
    for number in range(rounds):
        storage.set(keys, [values[number % len(values)]] * len(keys))
        found += storage.get(keys)
    storage.close()
    return at_first, found


class OtherProcess:
    """A function that runs in a new Python process from now on."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        """`function` is named in a module, and pickle takes `args` and what it gives."""
        spawn = multiprocessing.get_context("spawn")
        self._answer, there = spawn.Pipe(duplex=False)
        self._process = spawn.Process(target=_run, args=(there, function, args), daemon=True)
        self._process.start()
        there.close()

    def result(self) -> Any:
        """Wait for it.

        Raises:
            AssertionError: it raised (the text has its traceback), died, or did not end in time.
        """
        try:
            assert self._answer.poll(LIMIT_SECONDS), f"another process did not end within {LIMIT_SECONDS:.0f} s"
            good, answer = self._answer.recv()
        except EOFError as error:
            self._process.join(LIMIT_SECONDS)
            raise AssertionError(f"another process died with status {self._process.exitcode}") from error
        finally:
            self._answer.close()
            self._process.kill()
            self._process.join(LIMIT_SECONDS)
        assert good, f"another process raised:\n{answer}"
        return answer


def _run(there: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        there.send((True, function(*args)))
    except BaseException:  # the process that waits raises it
        there.send((False, traceback.format_exc()))
