"""A writer that is killed at random moments, again and again, and what the next opener finds. It runs in a process of its own,
which forks the writers: so each starts in milliseconds, and none has jax. The backend is known by its name only.
"""

import os
import random
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from kvcache_conformance.mutants import Replacement
from kvcache_conformance.storage_numbered import numbered_key, page_of, wrong_pages
from kvcache_conformance.storage_processes import StorageOpener

_BATCH = 3
_NUMBER_BYTES = 8
_PATIENCE = 2.0


class Hunt(NamedTuple):
    """How to hunt. `temporaries`: a glob pattern in `folder`; `wanted`: kills that leave such a file; `most`: kills in all;
    `keeps_all`: whether what was reported as stored has to be there (not with a limit).
    """

    folder: str
    temporaries: str
    nbytes: int
    wanted: int
    most: int
    seed: int
    keeps_all: bool = True


class Kills(NamedTuple):
    """What happened. The lists name what should not be: `wrong` and `missing` keys, `unswept` files, `largest`: the most bytes in
    all files after a kill.
    """

    kills: int
    with_temporary: int
    stored: int
    wrong: Sequence[str]
    missing: Sequence[str]
    unswept: Sequence[str]
    largest: int
    jax: bool


def kill_writers(opener: StorageOpener, hunt: Hunt) -> Kills:
    """Fork a writer, kill it, open the store again and look; until `wanted` kills have left a temporary file behind."""
    chance = random.Random(hunt.seed)
    folder = Path(hunt.folder)
    wrong: list[str] = []
    missing: list[str] = []
    unswept: list[str] = []
    kept: list[str] = []
    kills = with_temporary = stored = largest = next_number = 0
    while with_temporary < hunt.wanted and kills < hunt.most:
        reported, begun = _kill_one(opener, hunt, next_number, chance)
        kills += 1
        stored += len(reported)
        left = sorted(folder.glob(hunt.temporaries))
        with_temporary += bool(left)
        largest = max(largest, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
        storage = opener.open()
        unswept += [str(path) for path in left if path.exists()]
        touched = [numbered_key(number) for number in range(next_number, begun)]
        wrong += wrong_pages(storage, touched, hunt.nbytes)
        if hunt.keeps_all:
            promised = [*kept, *(numbered_key(number) for number in reported)]
            missing += [key for key, there in zip(promised, storage.exists(promised), strict=True) if not there]
            # A few stay from each round; all of them would fill the disk.
            storage.delete(touched[2:])
            kept += touched[:2] if len(reported) >= 2 else []
        storage.close()
        next_number = begun
    storage = opener.open()
    wrong += wrong_pages(storage, kept, hunt.nbytes)
    storage.close()
    return Kills(kills, with_temporary, stored, wrong, missing, unswept, largest, "jax" in sys.modules)


def kill_faulty_writers(opener: StorageOpener, hunt: Hunt, fault: Replacement) -> Kills:
    """The same with a fault planted, in this process and so in its writers: what the hunt has to notice."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        return kill_writers(opener, hunt)


def _kill_one(opener: StorageOpener, hunt: Hunt, first: int, chance: random.Random) -> tuple[list[int], int]:
    """The numbers that a writer reported as stored before it was killed, and the first number that it cannot have begun."""
    receive, send = os.pipe()
    pid = os.fork()
    if not pid:
        _write_for_ever(opener, hunt.nbytes, first, send)
    os.close(send)
    heard = b""
    try:
        for _ in range(chance.randrange(3)):
            heard += os.read(receive, _NUMBER_BYTES)
        # The moment of the kill has to lie anywhere in a write, so this is the one place where time passes on purpose. On a busy
        # machine a random moment seldom lies in a write: every other one is chosen when the writer is seen at it.
        if chance.random() < 0.5:
            _await_write(hunt)
            select.select([], [], [], chance.random() * 0.0005)
        else:
            select.select([], [], [], chance.random() * 0.004)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    while more := os.read(receive, 65536):
        heard += more
    os.close(receive)
    count = len(heard) // _NUMBER_BYTES
    ends = [int.from_bytes(heard[at * _NUMBER_BYTES :][:_NUMBER_BYTES], "little") for at in range(count)]
    end = ends[-1] if ends else first
    return list(range(first, end)), end + _BATCH


def _await_write(hunt: Hunt) -> None:
    """Until a page is being written, or a while has passed without."""
    until = time.monotonic() + _PATIENCE
    while not any(Path(hunt.folder).glob(hunt.temporaries)) and time.monotonic() < until:
        pass


def _write_for_ever(opener: StorageOpener, nbytes: int, first: int, send: int) -> NoReturn:
    """The writer: after each batch it reports the first number that is not stored yet."""
    try:
        storage = opener.open()
        number = first
        while True:
            keys = [numbered_key(number + at) for at in range(_BATCH)]
            storage.set(keys, [page_of(key, nbytes) for key in keys])
            number += _BATCH
            os.write(send, number.to_bytes(_NUMBER_BYTES, "little"))
    finally:
        # Never back into the code of the parent, whatever was raised.
        os._exit(1)
