"""Calls into foreign code that may never come back, made where nobody can wait for ever: at the start and at the end."""

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from kvcache_core.contracts.storage import HiCacheStorage

T = TypeVar("T")

log = logging.getLogger(__name__)


def within(timeout: float, call: Callable[[], T]) -> T:
    """The result of `call`, which runs in a thread of its own; one that does not come back is left behind, it is a daemon.

    Raises TimeoutError after `timeout` seconds, or what `call` raises.
    """
    results: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # foreign code: it may raise SystemExit as well
            raised.append(error)

    thread = threading.Thread(target=run, name="kvcache-storage-call", daemon=True)
    thread.start()
    thread.join(timeout)
    if raised:
        error = raised[0]
        raise error if isinstance(error, Exception) else RuntimeError(repr(error))
    if not results and thread.is_alive():
        raise TimeoutError(f"no answer within {timeout:g} s")
    return results[0]


def close_within(timeout: float, backend: HiCacheStorage) -> None:
    """Close a backend; that it fails or hangs is logged and nothing else, for whoever closes has nothing to ask it any more."""
    try:
        within(timeout, backend.close)
    except TimeoutError:
        log.warning("the storage backend did not close within %g s and is left behind", timeout)
    except Exception:
        log.warning("closing the storage backend failed", exc_info=True)
