"""One page on its way to its place: room is claimed, it is written beside, and moved there. It knows no key and no batch."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import final

from kvcache_core.contracts.storage import Value
from kvcache_storage_file import page_file
from kvcache_storage_file.layout import Place
from kvcache_storage_file.session import Session


@final
class Draft:
    """A page that is written. It ends with `commit`; whatever raises gives back what was claimed, and leaves nothing behind."""

    def __init__(self, session: Session, value: Value, used: int) -> None:
        """Raises OSError."""
        self._session = session
        self._claim = session.room.claim(memoryview(value).nbytes, used)
        self._temporary = session.member.temporary()
        try:
            self._fd = page_file.write(self._temporary, value, used)
        except BaseException:
            self._give_up()
            raise

    def sync(self) -> None:
        """The bytes are on the disk from here on, the name is not. Raises OSError; then there is nothing to commit."""
        self.attempt(lambda: os.fsync(self._fd))

    def attempt(self, step: Callable[[], None]) -> None:
        """Something else that the page needs before it is committed; the page is given up with what `step` raises."""
        try:
            step()
        except BaseException:
            with suppress(OSError):  # a network file system fails here once more, with what `step` said
                self._close()
            self._give_up()
            raise

    def commit(self, place: Place) -> None:
        """The page has its name from here on. Raises OSError."""
        try:
            self._close()  # a network file system may say only here that it had no room
            self._session.room.commit(self._claim, self._temporary, place.path, place.shard)
        except BaseException:
            self._give_up()
            raise

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)

    def _give_up(self) -> None:
        # Whatever went wrong is raised already; a temporary file that stays is swept later.
        with suppress(OSError):
            os.unlink(self._temporary)  # noqa: PTH108
        self._session.room.release(self._claim)
