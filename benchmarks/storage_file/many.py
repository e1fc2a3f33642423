"""Opens a root with very many small files, in a process of its own: how long it takes and how much memory. Prints JSON."""

import argparse
import json
import resource
import time
from pathlib import Path

from kvcache_core.contracts.storage import StorageScope
from kvcache_storage_file.config import FileOptions
from kvcache_storage_file.storage import LocalFileStorage

KEY = "0" * 64
NBYTES = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--max-bytes", type=int)
    args = parser.parse_args()
    options = FileOptions(path=args.root, max_bytes=args.max_bytes)
    scope = StorageScope("bench", 16)
    before = resident()
    start = time.perf_counter()
    storage = LocalFileStorage(options, scope)
    opened = time.perf_counter() - start
    first = timed(lambda: storage.get([KEY, "1" * 64]))
    write = timed(lambda: storage.set([KEY], [bytes(NBYTES)]))
    counted = None
    if args.max_bytes is not None:
        wait_until_counted(storage)
        counted = time.perf_counter() - start
    steady = timed(lambda: storage.set(["2" * 64], [bytes(NBYTES)]))
    print(
        json.dumps(
            {
                "open": opened,
                "first_get": first,
                "first_set": write,
                "counted": counted,
                "set": steady,
                "mib": (resident() - before) / 1024,
            }
        )
    )
    storage.close()


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def wait_until_counted(storage: LocalFileStorage) -> None:
    while not storage.counted:
        time.sleep(0.01)


def resident() -> int:
    """The most that this process has had, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def make_files(root: Path, n: int) -> None:
    """`n` pages of 1 KiB, made without the store."""
    content = bytes(NBYTES)
    for shard in range(256):
        (root / "bench" / "16" / f"{shard:02x}").mkdir(parents=True, exist_ok=True)
    for number in range(n):
        key = f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4
        (root / "bench" / "16" / key[:2] / f"{key}.npy").write_bytes(content)


if __name__ == "__main__":
    main()
