"""S3: what the guard has said is stored outlives a kill -9 of its process, and nothing wrong is served afterwards."""

import random
import signal
import subprocess
import sys

from kvcache_conformance.storage_numbered import numbered_key
from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import StorageScope
from kvcache_unified_hicache.storage.page_frame import PageFrame

NBYTES = 1 << 18
KILLS = 4
FRAME = PageFrame((PageArray("k", "uint8", (NBYTES,)),))

WRITER = """
import itertools, sys
from kvcache_conformance.storage_numbered import numbered_key
from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import PageArray
from kvcache_core.contracts.storage import StorageScope
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard
from kvcache_unified_hicache.storage.page_frame import PageFrame

path, nbytes, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
frame = PageFrame((PageArray("k", "uint8", (nbytes,)),))
backend = StorageOpener("file", {"path": path, "min_free_bytes": 0}, StorageScope("model", 16)).open()
guard = StorageGuard(backend, GuardSettings(batch_bytes=3 * nbytes), CacheCounters(), ())
assert "jax" not in sys.modules

def page(key):
    value = frame.new_value()
    frame.payload_of(value)[:] = (bytes.fromhex(key) * (nbytes // 32))[:nbytes]
    frame.seal(key, value)
    return value

def said(numbers):
    return lambda answers: print(*(n for n, ok in zip(numbers, answers) if ok), flush=True)

for start in itertools.count(first, 4):
    numbers = range(start, start + 4)
    keys = [numbered_key(n) for n in numbers]
    assert guard.store(keys, frame.file_bytes, lambda keys=keys: [page(key) for key in keys], said(numbers))
    while guard.in_flight > 16 * nbytes:
        guard.wait(1.0)
        guard.poll()
"""


def killed(path, first: int, lines: int) -> list[int]:
    """The numbers of pages that a writer said are stored, until it was killed after so many words of it."""
    command = [sys.executable, "-c", WRITER, str(path), str(NBYTES), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        heard = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        # The last line may have been cut; what was not said whole was not promised.
        rest = writer.stdout.read()
        heard += rest[: rest.rfind("\n") + 1].splitlines()
        error = writer.stderr.read()
    assert writer.returncode == -signal.SIGKILL, error
    return [int(word) for line in heard for word in line.split()]


def test_what_was_reported_as_stored_is_there_after_a_kill(tmp_path):
    chance, first, promised, kills, left_behind = random.Random(3), 0, 0, 0, 0
    while kills < KILLS or (not left_behind and kills < 10 * KILLS):
        kills += 1
        numbers = killed(tmp_path, first, chance.randrange(1, 12))
        left_behind += len(list(tmp_path.glob(".kvcache/*/*.tmp")))
        promised += len(numbers)
        backend = StorageOpener("file", {"path": str(tmp_path), "min_free_bytes": 0}, StorageScope("model", 16)).open()
        assert not list(tmp_path.glob(".kvcache/*/*.tmp"))
        # Some more were under way: they are whole or absent.
        begun = [numbered_key(number) for number in range(first, max(numbers) + 64)]
        wanted = {numbered_key(number) for number in numbers}
        for key, value in zip(begun, backend.get(begun), strict=True):
            assert value is not None or key not in wanted
            if value is not None:
                assert bytes(FRAME.open(key, value)) == (bytes.fromhex(key) * (NBYTES // 32))[:NBYTES]
        backend.delete(begun)
        backend.close()
        first = max(numbers) + 64
    assert promised >= 4 * KILLS
    assert left_behind, "no kill hit a write"
