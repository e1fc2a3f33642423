"""The peer's side: LMCache's local disk backend, unmodified, in a process of its own and in the peer's environment.

    python peer_lmcache.py FOLDER NBYTES PAGES REQUEST

It imports nothing of this project. Orders come as JSON lines on the standard input: `["empty"]`, `["write", first, n]`,
`["read", first, n]`; each is answered by one line, the seconds it took.
"""

# pyright: reportMissingImports=false
# LMCache is in no environment of this project.

import asyncio
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

QUIET = {"LMCACHE_LOG_LEVEL": "ERROR", "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
DIFFERENT = 16
"""Pages with contents of their own, as on our side."""
HEADS, BYTES = 4, 2
TOKENS = 64
SECONDS = 120.0


class Disk:
    """`pages` of `nbytes` in LMCache's own host memory, written and read `request` at a time."""

    def __init__(self, folder: Path, nbytes: int, pages: int, request: int) -> None:
        import torch
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

        # What is timed is reading and writing; its copies are bytes, and need no threads.
        torch.set_num_threads(1)
        width = nbytes // (2 * HEADS * TOKENS * BYTES)
        shape, dtype = torch.Size([2, HEADS, TOKENS, width]), torch.bfloat16
        self._folder, self._request = folder, request
        self._config = LMCacheEngineConfig.from_defaults(
            chunk_size=TOKENS,
            local_cpu=True,
            max_local_cpu_size=round(nbytes * pages * 2.5 / 2**30 + 0.25, 2),
            local_disk=str(folder),
            max_local_disk_size=64.0,
            lmcache_instance_id="bench",
        )
        self._metadata = LMCacheMetadata(
            model_name="bench/model",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=dtype,
            kv_shape=(HEADS, 2, TOKENS, 1, width),
            chunk_size=TOKENS,
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._cpu = LocalCPUBackend(self._config, self._metadata, "cpu")
        self._backend = LocalDiskBackend
        self._disk: Any = None
        self._keys = [CacheEngineKey("bench/model", 1, 0, (1 << 24) + number, dtype) for number in range(pages)]
        self._sources = [torch.randint(0, 255, (nbytes,), dtype=torch.uint8).view(dtype).view(shape) for _ in range(DIFFERENT)]
        self._objects: list[Any] = []
        for number in range(pages):
            held = self._cpu.allocate(shape, dtype, MemoryFormat.KV_2LTD)
            held.tensor.copy_(self._sources[number % DIFFERENT])
            self._objects.append(held)
        self._equal = lambda held, number: torch.equal(
            held.tensor.view(torch.uint8), self._sources[number % DIFFERENT].view(torch.uint8)
        )

    def empty(self) -> float:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._disk = self._backend(self._config, self._loop, self._cpu, "cpu", None, self._metadata)
        return 0.0

    def write(self, first: int, n: int) -> float:
        """All of them submitted at once, until the last is on the disk: its threads take what comes."""
        done, left, lock = threading.Event(), [n], threading.Lock()

        def one(_: object) -> None:
            with lock:
                left[0] -= 1
                if not left[0]:
                    done.set()

        start = time.perf_counter()
        for number in range(first, first + n):
            self._disk.submit_put_task(self._keys[number], self._objects[number], on_complete_callback=one)
        if not done.wait(SECONDS):
            raise TimeoutError(f"{left[0]} of {n} pages are not written after {SECONDS} s")
        return time.perf_counter() - start

    def read(self, first: int, n: int) -> float:
        start = time.perf_counter()
        if self._request == 1:
            for key in self._keys[first : first + n]:
                self._disk.get_blocking(key).ref_count_down()
        else:
            for at in range(first, first + n, self._request):
                for held in self._disk.batched_get_blocking(self._keys[at : min(at + self._request, first + n)]):
                    held.ref_count_down()
        seconds = time.perf_counter() - start
        held = self._disk.get_blocking(self._keys[first])
        assert self._equal(held, first), "the peer read something else than it wrote"
        held.ref_count_down()
        return seconds


def main() -> None:
    folder, nbytes, pages, request = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    os.environ.update(QUIET)
    # Whatever the libraries print must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    disk = Disk(folder, nbytes, pages, request)
    for line in sys.stdin:
        name, *numbers = json.loads(line)
        seconds = {"empty": disk.empty, "write": disk.write, "read": disk.read}[name](*numbers)
        print(seconds, file=answers, flush=True)
    # Its threads would go on waiting.
    os._exit(0)


if __name__ == "__main__":
    main()
