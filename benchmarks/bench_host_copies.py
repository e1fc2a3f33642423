"""Copies between a device pool and host pools against numpy's memcpy of the same bytes to a warm destination.

`out`: from the dispatch of the gather until the slots can be loaded again. `in`: from the capture of the slots until the pages
are in the device pool. `pack`: what brings pages of a sparse batch into memory of their own, on another thread; a load of
`packed` pages is the worst case. `owner us`: processor time of the thread that dispatches (it assembles packed pages here; the
cache leaves that to a worker). The host pools are full and turn over, as in use, and freed memory stays in the process unless
`--give-memory-back`: fresh memory costs several times more. memcpy takes turns with every copy, in the same run.

    python benchmarks/bench_host_copies.py [--pages 1,8,64,512] [--rounds 30] [--give-memory-back] [--out out/host_copies.json]

Figures of a CPU say nothing about HBM and PCIe: both ends are one memory there, and copies share the cores with everything else.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kvcache_engine.freed_memory import keep_freed_memory
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.captured import CapturedPages
from kvcache_unified_hicache.host_pool.page_layout import PageLayout, PageSource
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool

SHAPE: dict[str, Any] = {"layers": 30, "page_size": 16, "kv_heads": 3, "head_dim": 64, "dtype": "float32"}
ROOM = 4  # a host pool holds this many batches
WARM_UP = 3

Timed = tuple[float, float]
"""Seconds: until complete, and of the calling thread's processor time for the dispatch."""


def timed(dispatch: Callable[[], object], finish: Callable[[], object]) -> Timed:
    wall, own = time.perf_counter(), time.thread_time()
    dispatch()
    own = time.thread_time() - own
    finish()
    return time.perf_counter() - wall, own


class Device:
    """A device pool; every copy moves the same `pages` pages, in an order without locality."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.pool = PagedKVPool(total_pages=2 * pages, **SHAPE)
        self.buffers = self.pool.create()
        self.indices = (np.random.default_rng(0).permutation(2 * pages)[:pages] + 1).astype(np.int32)
        self.nbytes = pages * self.pool.bytes_per_page
        self._source, self._warm = np.ones(self.nbytes, np.uint8), np.ones(self.nbytes, np.uint8)

    def memcpy(self) -> float:
        return timed(lambda: None, lambda: np.copyto(self._warm, self._source))[0]

    def gather(self) -> Any:
        return self.pool.gather(self.buffers, self.indices)

    def load(self, capture: Callable[[], CapturedPages]) -> Timed:
        def dispatch() -> None:
            for batch in capture().batches():
                self.buffers = self.pool.scatter(self.buffers, batch.targets(self.indices), batch.pages)

        return timed(dispatch, lambda: jax.block_until_ready(self.buffers))


class Full:
    """A host pool that is full. Pages come in for the oldest."""

    def __init__(self, device: Device, kind: Callable[..., HostKVPool], *, probe: int) -> None:
        """`probe`: how many pages of a batch to capture in order to see that they are there: the number that costs least."""
        self._device = device
        self._probe = probe
        self._pool = kind(device.pool.host_struct(), ROOM * device.pages)
        self._slots: deque[np.ndarray] = deque()
        for _ in range(ROOM):
            self._enter(device.gather())

    def out(self) -> Timed:
        self._pool.free(self._slots.popleft())
        gathered: list[Any] = []

        def finish() -> None:
            self._enter(jax.block_until_ready(gathered.pop()))
            # Waits for the pool's own copy, where there is one.
            probe = self._pool.get(self._slots[-1][: self._probe])
            jax.block_until_ready([batch.pages for batch in probe.batches()])

        return timed(lambda: gathered.append(self._device.gather()), finish)

    def back(self) -> Timed:
        return self._device.load(lambda: self._pool.get(self._slots[-1]))

    def _enter(self, pages: Any) -> None:
        slots = self._pool.alloc(self._device.pages)
        assert slots is not None
        self._pool.put(slots, pages)
        self._slots.append(slots)


class Packed:
    """Pages that lie in memory of their own."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._layout = PageLayout(device.pool.host_struct())
        self._pages: deque[list[jax.Array]] = deque(maxlen=ROOM)
        for _ in range(ROOM):
            self.pack()

    def pack(self) -> Timed:
        batch = jax.block_until_ready(self._device.gather())
        rows = range(self._device.pages)
        return timed(lambda: None, lambda: self._pages.append(self._layout.pack(batch, rows)))

    def back(self) -> Timed:
        return self._device.load(lambda: CapturedPages(self._layout, [PageSource(page, -1) for page in self._pages[-1]]))


def measure(pages: int, rounds: int) -> list[dict[str, Any]]:
    device = Device(pages)
    per_page, preallocated = Full(device, PerPagePool, probe=pages), Full(device, PreallocatedPool, probe=1)
    packed = Packed(device)
    cases: dict[tuple[str, str], Callable[[], Timed]] = {
        ("per_page", "out"): per_page.out,
        ("per_page", "in"): per_page.back,
        ("preallocated", "out"): preallocated.out,
        ("preallocated", "in"): preallocated.back,
        ("per_page, packed", "pack"): packed.pack,
        ("per_page, packed", "in"): packed.back,
    }
    results: dict[tuple[str, str], list[tuple[float, Timed]]] = {name: [] for name in cases}
    for _ in range(WARM_UP + rounds):
        for name, case in cases.items():
            results[name].append((device.memcpy(), case()))
    return [summary(pages, device.nbytes, *name, runs[WARM_UP:]) for name, runs in results.items()]


def summary(pages: int, nbytes: int, pool: str, direction: str, runs: list[tuple[float, Timed]]) -> dict[str, Any]:
    memcpy, copy = [run[0] for run in runs], [run[1][0] for run in runs]
    return {
        "pool": pool,
        "direction": direction,
        "pages": pages,
        "bytes": nbytes,
        "ms_median": statistics.median(copy) * 1e3,
        "ms_quartiles": [quartile * 1e3 for quartile in statistics.quantiles(copy, n=4)],
        "ms_best": min(copy) * 1e3,
        "memcpy_ms_median": statistics.median(memcpy) * 1e3,
        "memcpy_ms_best": min(memcpy) * 1e3,
        "of_memcpy_median": statistics.median(memcpy) / statistics.median(copy),
        "of_memcpy_best": min(memcpy) / min(copy),
        "owner_us_median": statistics.median(run[1][1] for run in runs) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", default="1,8,64,512")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("out/host_copies.json"))
    parser.add_argument("--give-memory-back", action="store_true", help="leave malloc as it is")
    arguments = parser.parse_args()
    keeps_memory = not arguments.give_memory_back and keep_freed_memory()
    rows: list[dict[str, Any]] = []
    titles = "".join(f" {title:>8}" for title in ("ms", "best", "memcpy", "best"))
    print(f"{'pool':17} {'':4} {'pages':>5}{titles} {'of memcpy':>9} {'best':>5} {'owner us':>9}")
    for pages in map(int, arguments.pages.split(",")):
        for row in measure(pages, arguments.rounds):
            rows.append(row)
            times = "".join(f" {row[name]:8.2f}" for name in ("ms_median", "ms_best", "memcpy_ms_median", "memcpy_ms_best"))
            share = f" {row['of_memcpy_median']:9.2f} {row['of_memcpy_best']:5.2f} {row['owner_us_median']:9.0f}"
            print(f"{row['pool']:17} {row['direction']:4} {row['pages']:5}{times}{share}", flush=True)
    machine = {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "devices": [device.device_kind for device in jax.devices()],
        "jax": jax.__version__,
        "numpy": np.__version__,
        "freed_memory_is_kept": keeps_memory,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"pages_of": SHAPE, "rounds": arguments.rounds, "machine": machine, "rows": rows}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
