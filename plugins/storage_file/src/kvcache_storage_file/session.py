"""Everything that belongs to one opening of a root: the locks, books and folders in its `.kvcache`, and the room for pages.

A root that is removed while it is in use gets a new session; the old one ends with the last call that still uses it.
"""

import logging
import os
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import final

from kvcache_storage_file.free_space import FreeSpace
from kvcache_storage_file.layout import PRIVATE
from kvcache_storage_file.ledger import Ledger
from kvcache_storage_file.member import Member, sweep
from kvcache_storage_file.pages import Pages
from kvcache_storage_file.room import Room
from kvcache_storage_file.shared_lock import SharedLock

log = logging.getLogger(__name__)

COUNT_SECONDS = 2.0
"""How long opening waits for the count of what is there; a longer one goes on in the background."""


@final
class Session:
    """One opener of the root of `pages`, which is made where it is missing. Raises OSError."""

    def __init__(self, pages: Pages, max_bytes: int | None, min_free_bytes: int | None, device: int | None = None) -> None:
        """`device`: the file system that the root has to be on, None for any."""
        root = pages.root
        if device is not None and _nearest_device(root) != device:
            # Before anything is made: below an empty mount point it would be on another disk.
            raise OSError(f"{root} is on another file system than when it was opened")
        Path(root).mkdir(parents=True, exist_ok=True)
        self.device = os.stat(root).st_dev  # noqa: PTH116
        private = f"{root}/{PRIVATE}"
        Path(private).mkdir(exist_ok=True)
        with ExitStack() as undo:
            lock = SharedLock(f"{private}/lock")
            undo.callback(lock.close)
            with lock:
                abandoned = list(sweep(private))
                self.member = Member(private)
                undo.callback(self.member.close)
                self.ledger = Ledger(f"{private}/usage", lock, self.member, max_bytes)
                undo.callback(self.ledger.close)
                for one in abandoned:
                    self.ledger.forget(one.claimed, one.epoch)
            self.swept = sum(one.temporaries for one in abandoned)
            if self.swept:
                log.info("%d unfinished pages of processes that were killed were removed from %s", self.swept, root)
            self.room = Room(pages, self.ledger, FreeSpace(root, min_free_bytes), max_bytes)
            self._users = 0
            self._changed = threading.Condition(threading.Lock())
            self._ended = False
            if max_bytes is not None:
                self._count()
            # Last: a count that goes on in the background may be the one that closes.
            self._undo = undo.pop_all()

    def enter(self) -> None:
        """Nothing is closed until `leave`: a descriptor that is closed too early would soon be another file's.

        Raises ValueError after `end`.
        """
        with self._changed:
            if self._ended:
                raise ValueError("this storage is closed")
            self._users += 1

    def leave(self) -> None:
        """The end of what began with `enter`."""
        with self._changed:
            self._users -= 1
            if self._ended and not self._users:
                self._undo.close()
                self._changed.notify_all()

    def end(self, patience: float = 1.0) -> None:
        """Close it; after `patience` seconds leave that to the last call that is still inside. Called once."""
        with self._changed:
            self._ended = True
            if not self._users:
                self._undo.close()
            else:
                self._changed.wait_for(lambda: not self._users, patience)

    def _count(self) -> None:
        until = time.monotonic() + COUNT_SECONDS
        if not self.room.count(lambda: time.monotonic() < until):
            self.enter()
            threading.Thread(target=self._count_on, name="kvcache-file-count", daemon=True).start()

    def _count_on(self) -> None:
        try:
            self.room.count(lambda: not self._ended)
        except Exception:
            # Writes go on: each is paid for with pages until somebody has counted.
            log.warning("the pages of the root could not be counted", exc_info=True)
        finally:
            self.leave()


def _nearest_device(path: str) -> int:
    """The file system of `path`, or of the first of its parents that is there. Raises OSError."""
    for folder in (Path(path), *Path(path).parents):
        with suppress(FileNotFoundError):
            return folder.stat().st_dev
    raise FileNotFoundError(f"no part of {path} is there")
