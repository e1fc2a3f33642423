"""The root folder as it is now: which session is the current one, and what to do when the folder or the room in it has gone.
It knows no key.
"""

import errno
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import final

from kvcache_storage_file import full_disk
from kvcache_storage_file.pages import Pages
from kvcache_storage_file.room import NoRoomError
from kvcache_storage_file.session import Session

_GONE = (errno.ENOENT, errno.ENOTDIR)


@final
class Root:
    """An opened root. Thread safe."""

    def __init__(self, path: str, max_bytes: int | None, min_free_bytes: int | None) -> None:
        """Raises OSError."""
        self.pages = Pages(path)
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._lock = threading.Lock()
        self._session = self._begun()
        self.swept = self._session.swept
        self.closed = False

    @contextmanager
    def use(self) -> Generator[Session]:
        """The current session, which stays whole inside. Raises ValueError after `close`."""
        with self._lock:
            session = self._session
            session.enter()
        try:
            yield session
        finally:
            session.leave()

    def mend(self, session: Session, error: OSError, nbytes: int, used: int) -> bool:
        """After a write of `nbytes` failed: whether something was done that makes another try worth while. Raises OSError.

        `used`: the time of use (ns) of what was to be written.

        A root that was removed is made again. Not where its file system has gone: under an empty mount
        point is another disk.
        """
        if isinstance(error, NoRoomError):
            return False
        if error.errno in full_disk.FULL:
            # The limit of a user, or what another process has written since we looked.
            return session.room.remove(2 * nbytes, used, "because the disk is full") > 0
        if error.errno not in _GONE:
            return False
        with self._lock:
            if self._session is session and not session.member.is_there() and not self.closed:
                self._session = self._begun(session.device)
                session.end(patience=0)  # the caller is inside
        return True

    def _begun(self, device: int | None = None) -> Session:
        """A new session, on a full disk in the place of some pages. Raises OSError."""
        try:
            return Session(self.pages, self._max_bytes, self._min_free_bytes, device)
        except OSError as error:
            if error.errno not in full_disk.FULL:
                raise
            full_disk.make_room_to_open(self.pages)
            return Session(self.pages, self._max_bytes, self._min_free_bytes, device)

    def close(self) -> None:
        """Leave the root. Idempotent."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
        self._session.end()
