"""Makes room before a page is written: under the limit of the root and above the floor of the file system. It removes pages, and
knows nothing of how they are written.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import final

from kvcache_core.errors import IntegrityError
from kvcache_storage_file.free_space import FreeSpace
from kvcache_storage_file.ledger import Claim, Ledger
from kvcache_storage_file.pages import Page, Pages
from kvcache_storage_file.victims import Victims

log = logging.getLogger(__name__)


@final
class NoRoomError(OSError):
    """There is no room for a page, and none can be made.

    What to do: raise `max_bytes`, lower `min_free_bytes`, or free some space on the disk.
    """


@final
class Room:
    """Room of one root. Thread safe. `limit`: bytes of all pages; None for none."""

    def __init__(self, pages: Pages, ledger: Ledger, space: FreeSpace, limit: int | None) -> None:
        self._pages = pages
        self._root = pages.root
        self._ledger = ledger
        self._space = space
        self._limit = limit
        self._limited = f"to stay within max_bytes={limit}"
        self._victims = Victims(pages, ledger.look)
        self._warned = self._warned_small = False
        self._opened = time.time_ns()

    def claim(self, nbytes: int, used: int) -> Claim:
        """Room for a page of `nbytes`, removing others where there is none. Ends with `commit` or `release`. `used`: the page's
        time of use (ns).

        Raises NoRoomError where not enough can be removed; then nothing is claimed.
        """
        if self._limit is not None and nbytes > self._limit:
            raise NoRoomError(errno.ENOSPC, f"a page of {nbytes} bytes is larger than max_bytes ({self._limit})")
        claim = self._claim_in_books(nbytes, used)
        try:
            self._claim_space(nbytes, used)
        except BaseException:
            self._ledger.release(claim)
            raise
        return claim

    def commit(self, claim: Claim, temporary: str, path: str, shard: int) -> None:
        """The finished page goes to its place. On an OSError the claim stays."""
        self._ledger.commit(claim, temporary, path, shard)
        self._space.release(claim.nbytes)

    def release(self, claim: Claim) -> None:
        """The page was not written."""
        self._ledger.release(claim)
        self._space.release(claim.nbytes)

    def remove(self, nbytes: int, used: int, why: str) -> int:
        """Remove the least recently used pages until `nbytes` are free; gives what was freed, less where there is no more.

        `used`: when the page was used (ns) that comes in their place. `why`: for the log.
        """
        freed = 0
        while freed < nbytes and (page := self._victims.next(used)) is not None:
            try:
                gone = self._ledger.remove(page.path, page.shard, page.used)
                if gone and page.used > self._opened:
                    self._too_small(page, why)
                freed += gone
            except OSError as error:
                # One page that stays must not keep the others: it is passed over, and tried again in a minute.
                self._victims.set_aside(page)
                if not self._warned:
                    self._warned = True
                    log.warning("a page cannot be removed to make room (said once): %s", error)
        return freed

    def count(self, go_on: Callable[[], bool]) -> bool:
        """Count what nobody has counted, then come down to the limit. False when `go_on` said no first."""
        for shard in self._ledger.unknown():
            if not go_on():
                return False
            self._ledger.look(shard, lambda number=shard: self._pages.of_shard(number))
        while excess := self._ledger.excess():
            # In portions, so that `close` does not have to wait for a large root.
            if not go_on():
                return False
            if not self.remove(min(excess, 2**30), time.time_ns(), self._limited):
                log.warning("%d bytes above max_bytes cannot be removed from %s", excess, self._root)
                break
        return True

    def check_integrity(self) -> None:
        """To be called while this opener writes nothing. Raises IntegrityError."""
        self._ledger.check_integrity(self._pages.of_shard)
        if self._space.writing:
            raise IntegrityError(f"{self._space.writing} bytes of free space are claimed and nothing is being written")

    def _too_small(self, page: Page, why: str) -> None:
        """A store that gives up what it is being used for helps nobody, and nothing else would tell."""
        if not self._warned_small:
            self._warned_small = True
            age = max(0.0, (time.time_ns() - page.used) / 1e9)
            log.warning(
                "the store in %s is smaller than what is being used: pages written or read %.3g s ago are removed %s; "
                "give it more (said once)",
                self._root,
                age,
                why,
            )

    def _claim_in_books(self, nbytes: int, used: int) -> Claim:
        paid = 0
        while True:
            found = self._ledger.claim(nbytes, paid)
            if isinstance(found, Claim):
                return found
            freed = self.remove(found, used, self._limited)
            if not freed:
                raise NoRoomError(
                    errno.ENOSPC, f"max_bytes ({self._limit}) is reached, and no page can be removed from {self._root}"
                )
            paid += freed

    def _claim_space(self, nbytes: int, used: int) -> None:
        lacking = self._space.claim(nbytes)
        if not lacking:
            return
        why = f"to keep min_free_bytes={self._space.floor} free on the disk"
        # What others have put on the disk is not ours to make up for at once: twice the page, and the floor is reached in time.
        freed = self.remove(min(lacking, 2 * nbytes), used, why)
        if not self._space.claim(nbytes):
            return
        # Another process may have taken what was freed: a page that makes up for its own bytes keeps the floor where it is.
        freed += self.remove(nbytes - freed, used, why)
        if freed < nbytes:
            raise NoRoomError(
                errno.ENOSPC,
                f"{os.strerror(errno.ENOSPC)}: {self._space.free()} bytes are free under {self._root}, min_free_bytes keeps "
                f"{self._space.floor}, and there is no page left to remove",
            )
        self._space.insist(nbytes)
