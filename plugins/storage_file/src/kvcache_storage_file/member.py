"""One opener of a root: its folder for pages being written, which says whether its owner lives, and what it has claimed.

A folder is abandoned when nobody holds its lock: process ids mean nothing across containers that share a volume. It knows nothing
of pages that are finished.
"""

import fcntl
import itertools
import os
import secrets
import shutil
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple, final

_CLAIMED = Struct("=qq")
_LOCK = "lock"


class Abandoned(NamedTuple):
    """What a killed process left: `temporaries` files, and `claimed` bytes in the books of `epoch`."""

    temporaries: int
    claimed: int
    epoch: int


@final
class Member:
    """The folder of this opener, from the start until `close`. Made while the root's lock is held, so that no sweep comes between
    its folder and its lock.
    """

    def __init__(self, private: str) -> None:
        self._folder = f"{private}/{secrets.token_hex(8)}"
        os.mkdir(self._folder)  # noqa: PTH102 - paths are strings in this package, see Layout
        with ExitStack() as undo:  # on a full disk any of these fails
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._fd = os.open(f"{self._folder}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            undo.callback(os.close, self._fd)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._numbers = itertools.count()
            self.claimed = self._epoch = 0
            self.claim(0, 0)
            undo.pop_all()

    def temporary(self) -> str:
        """A path that was never given before."""
        return f"{self._folder}/{next(self._numbers)}.tmp"

    def claim(self, nbytes: int, epoch: int) -> None:
        """Write down that `nbytes` more (or less) are claimed in the books of `epoch`, for whoever sweeps after this process."""
        self.claimed = nbytes if epoch != self._epoch else self.claimed + nbytes
        self._epoch = epoch
        os.pwrite(self._fd, _CLAIMED.pack(self.claimed, epoch), 0)

    def is_there(self) -> bool:
        """Whether the folder is still what it was: the root may have been removed."""
        try:
            return os.path.samestat(os.stat(f"{self._folder}/{_LOCK}"), os.fstat(self._fd))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return False

    def close(self) -> None:
        """Remove the folder, with what calls still running may have in it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._fd)


def sweep(private: str) -> Iterator[Abandoned]:
    """Remove what killed processes left. To be called while the root's lock is held."""
    for folder in Path(private).iterdir():
        if not folder.is_dir():
            continue
        with _unowned(folder / _LOCK) as fd:
            if fd is None:
                continue
            noted = os.pread(fd, _CLAIMED.size, 0)
            claimed, epoch = _CLAIMED.unpack(noted) if len(noted) == _CLAIMED.size else (0, 0)
            temporaries = len(list(folder.glob("*.tmp")))
            # What cannot be removed now is found again by the next sweep, so its claim has to stay as well.
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                yield Abandoned(temporaries, claimed, epoch)


@contextmanager
def _unowned(lock: Path) -> Generator[int | None]:
    """The descriptor of a lock that nobody held; None where somebody does, or where there is none to be had."""
    try:
        # Made where it is missing: its owner was killed before it came so far.
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)
