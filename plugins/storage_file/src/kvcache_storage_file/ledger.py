"""How many bytes the pages of a root take, for all processes that use it now and while one of them has a limit.

A count for each of the 256 shards (over all models and page sizes) and the sum of what is claimed for pages being written, in
one file that is changed under the root's lock. It is no index and is not trusted at a restart: the first process that comes with
a limit forgets all counts, and a shard counts again once its folders have been looked at. Every change is written in the order in
which a kill at any point leaves a count too high, never too low; looking at a shard, which evictions do, puts it right.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple, final

from kvcache_core.errors import IntegrityError
from kvcache_storage_file.layout import SHARDS
from kvcache_storage_file.member import Member
from kvcache_storage_file.pages import Page
from kvcache_storage_file.shared_lock import SharedLock

_UNKNOWN = -1
_CELL = Struct("=q")
_FIELDS = 3
_CELLS = Struct(f"={_FIELDS + len(SHARDS)}q")
_ACTIVE, _EPOCH, _CLAIMED = range(_FIELDS)


class Claim(NamedTuple):
    """Room for one page that is going to be written. `epoch`: of the books that hold it; 0 when no books are kept."""

    nbytes: int
    epoch: int


@final
class Ledger:
    """The books of one opener. Thread safe. `limit`: None for an opener that has none: it keeps books for others only."""

    def __init__(self, path: str, lock: SharedLock, member: Member, limit: int | None) -> None:
        """To be made while `lock` is held."""
        self._lock = lock
        self._member = member
        # Read and written, not mapped into memory: a full disk or a removed file would end the process instead of raising.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._join(limit)
        except BaseException:
            os.close(self._fd)
            raise
        self._limit = limit

    def claim(self, nbytes: int, paid: int = 0) -> Claim | int:
        """Claim room for a page, or the number of bytes that have to be removed first.

        While there are shards that nobody has counted, room is only given for what was `paid`: bytes this caller has removed.
        """
        if not self.active:
            return Claim(nbytes, 0)
        with self._lock:
            _, epoch, claimed, *counts = self._read()
            if self._limit is not None:
                lacking = nbytes - paid if _UNKNOWN in counts else sum(counts) + claimed + nbytes - self._limit
                if lacking > 0:
                    return lacking
            self._put(_CLAIMED, claimed + nbytes)
            self._member.claim(nbytes, epoch)
            return Claim(nbytes, epoch)

    def release(self, claim: Claim) -> None:
        """Give a claim back whose page was not written."""
        if claim.epoch:
            with self._lock:
                self._release(claim)

    def commit(self, claim: Claim, temporary: str, path: str, shard: int) -> None:
        """Move a finished page to its place, where it takes the place of an older one. On an OSError the claim stays."""
        if not claim.epoch and not self.active:
            os.replace(temporary, path)  # noqa: PTH105 - paths are strings in this package, see Layout
            if self.active:
                # Whoever came with a limit just now may have looked before the page was here. If not, the count is too high.
                with self._lock:
                    self._add(shard, claim.nbytes)
            return
        with self._lock:
            older = _size(path)
            self._add(shard, claim.nbytes)
            try:
                os.replace(temporary, path)  # noqa: PTH105
            except BaseException:
                self._add(shard, -claim.nbytes)
                raise
            self._add(shard, -older)
            self._release(claim)

    def remove(self, path: str, shard: int, used: int | None = None) -> int:
        """Remove a page and give its bytes; 0 where it is gone, or was used after `used`. Raises OSError."""
        if not self.active:
            return unlink(path, used)
        with self._lock:
            freed = unlink(path, used)
            self._add(shard, -freed)
            return freed

    def look(self, shard: int, pages: Callable[[], Sequence[Page]]) -> Sequence[Page]:
        """What `pages` finds in a shard; nobody changes it meanwhile, and its count is what was found."""
        if not self.active:
            return pages()
        with self._lock:
            found = pages()
            self._put(_FIELDS + shard, sum(page.nbytes for page in found))
            return found

    def unknown(self) -> list[int]:
        """The shards that nobody has counted."""
        _, _, _, *counts = self._read()
        return [shard for shard, count in enumerate(counts) if count == _UNKNOWN]

    def excess(self) -> int:
        """Bytes above the limit; 0 without a limit, or while not everything is counted."""
        if self._limit is None:
            return 0
        with self._lock:
            _, _, claimed, *counts = self._read()
        return 0 if _UNKNOWN in counts else max(0, sum(counts) + claimed - self._limit)

    def forget(self, claimed: int, epoch: int) -> None:
        """Take what a killed process had claimed out of the books. To be called while the lock is held."""
        cells = self._read()
        if claimed and cells[_ACTIVE] and cells[_EPOCH] == epoch:
            self._put(_CLAIMED, cells[_CLAIMED] - claimed)

    def check_integrity(self, pages: Callable[[int], Sequence[Page]]) -> None:
        """`pages` looks into a shard. To be called while this opener writes nothing.

        Raises IntegrityError: a count is lower than what is there, or a claim was not given back.
        """
        if self._member.claimed:
            raise IntegrityError(f"{self._member.claimed} bytes are claimed and nothing is being written")
        if not self.active:
            return
        with self._lock:
            _, _, claimed, *counts = self._read()
            if claimed < 0:
                raise IntegrityError(f"{claimed} bytes are claimed by all")
            for shard, count in enumerate(counts):
                found = sum(page.nbytes for page in pages(shard))
                if count not in (_UNKNOWN, found) and count < found:
                    raise IntegrityError(f"shard {SHARDS[shard]} has {found} bytes and counts {count}")

    def close(self) -> None:
        os.close(self._fd)

    @property
    def active(self) -> bool:
        """Whether some process that may be alive has a limit."""
        return os.pread(self._fd, _CELL.size, _ACTIVE * _CELL.size) != bytes(_CELL.size)

    def _join(self, limit: int | None) -> None:
        # Who has a limit holds a shared lock on the books for life. Nobody does: then nobody has kept them, whatever they say.
        alone = False
        with suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = True
        if alone:
            raw = os.pread(self._fd, _CELLS.size, 0)
            epoch = _CELLS.unpack(raw)[_EPOCH] + 1 if len(raw) == _CELLS.size else 1
            fresh = _CELLS.pack(limit is not None, epoch, 0, *[_UNKNOWN] * len(SHARDS))
            if os.pwrite(self._fd, fresh, 0) != len(fresh):
                raise OSError(errno.ENOSPC, "the books of the root could not be written")
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        if limit is not None:
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def _read(self) -> tuple[int, ...]:
        return _CELLS.unpack(os.pread(self._fd, _CELLS.size, 0))

    def _put(self, cell: int, value: int) -> None:
        os.pwrite(self._fd, _CELL.pack(value), cell * _CELL.size)

    def _add(self, shard: int, nbytes: int) -> None:
        (count,) = _CELL.unpack(os.pread(self._fd, _CELL.size, (_FIELDS + shard) * _CELL.size))
        if nbytes and count != _UNKNOWN:
            # A page that somebody put there by hand was never added; no count may pretend to be unknown.
            self._put(_FIELDS + shard, max(0, count + nbytes))

    def _release(self, claim: Claim) -> None:
        cells = self._read()
        if claim.epoch and claim.epoch == cells[_EPOCH]:
            self._member.claim(-claim.nbytes, claim.epoch)
            self._put(_CLAIMED, max(0, cells[_CLAIMED] - claim.nbytes))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except FileNotFoundError:
        return 0


def unlink(path: str, used: int | None) -> int:
    """Remove a page without books; as `Ledger.remove`. Raises OSError."""
    try:
        status = os.stat(path, follow_symlinks=False)  # noqa: PTH116
        if used is not None and status.st_mtime_ns != used:
            return 0
        os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        return 0
    return status.st_size
