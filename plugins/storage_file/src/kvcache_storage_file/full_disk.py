"""A disk that is too full to open a root on it: some of the oldest pages go. There are no books yet to take them out of, so
others' counts stay too high until somebody looks at the shards, as after any page that is removed by hand.
"""

import errno
import logging
import os
import time
from typing import Final

from kvcache_storage_file.ledger import unlink
from kvcache_storage_file.pages import Pages
from kvcache_storage_file.room import NoRoomError
from kvcache_storage_file.victims import Victims

FULL: Final = (errno.ENOSPC, errno.EDQUOT)

ENOUGH: Final = 2**20
"""Bytes that go: what an opening writes is some blocks, and others may be waiting for them too."""

log = logging.getLogger(__name__)


def make_room_to_open(pages: Pages) -> None:
    """Remove the least recently used pages until ENOUGH bytes are free, or all there are. Raises NoRoomError where none goes."""
    victims = Victims(pages, lambda _, find: find())
    freed = 0
    while freed < ENOUGH and (page := victims.next(time.time_ns())) is not None:
        try:
            freed += unlink(page.path, page.used)
        except OSError:
            victims.set_aside(page)
    if not freed:
        raise NoRoomError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}, and there is no page to remove in {pages.root}: free some space on its disk",
        )
    log.warning("the disk of %s is full: %d bytes of the oldest pages were removed to open it", pages.root, freed)
