"""What only an accelerator can show about L1 and L2: one prepared script, under 8 minutes on one chip.

    python benchmarks/device.py [--out out/device.json] [--seconds 420] [--rehearse]

Checked: pages come back bit for bit through gather, host pool and scatter, for every dtype; every host array is in pinned_host
memory; both host pools (the preallocated one in a process of its own: an open bug in XLA aborts scatters into pinned host memory
on accelerators); a copy that was dispatched before a forward pass is pending while that pass is dispatched, and nothing blocks.
Measured: copies in both directions against the peak that `jax.device_put` of one large array reaches, and a forward pass with and
without copies beside it, in pairs, with a control.

Without an accelerator it says "not run: no accelerator" and ends with 0. `--rehearse` runs it on the CPU with small numbers, to
see that the script works; those figures say nothing about HBM and PCIe.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hicache.common import median_interval, write

from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_unified_hicache.host_pool.base import HostKVPool
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool

NOT_RUN = "not run: no accelerator"
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")
POOLS: dict[str, Callable[..., HostKVPool]] = {"per_page": PerPagePool, "preallocated": PreallocatedPool}
SHAPE: dict[str, Any] = {"layers": 30, "page_size": 16, "kv_heads": 3, "head_dim": 64}
SMALL: dict[str, Any] = {"layers": 3, "page_size": 4, "kv_heads": 2, "head_dim": 8}
CHILD_SECONDS = 150

Clock = Callable[[], float]


def bits_of(tree: Any) -> list[np.ndarray]:
    return [np.ascontiguousarray(leaf).view(np.uint8) for leaf in jax.tree.leaves(tree)]


def round_trip(dtype: str, kind: Callable[..., HostKVPool]) -> dict[str, Any]:
    """Random bits in 20 pages, out through a host pool and back to other pages, twice: as they lie, and from a sparse batch."""
    pages, total = 20, 64
    pool = PagedKVPool(total_pages=total, dtype=dtype, **SMALL)
    rng = np.random.default_rng(1)
    struct = pool.host_struct()

    def draw(leaf: Any) -> jax.Array:
        shape = (pages, *leaf.shape[1:-1], leaf.shape[-1] * leaf.dtype.itemsize)
        return jax.device_put(rng.integers(0, 256, shape, np.uint8).view(leaf.dtype), leaf.sharding)

    content = jax.tree.map(draw, struct)
    here, there = np.arange(1, pages + 1, dtype=np.int32), np.arange(40, 40 + pages, dtype=np.int32)
    buffers = pool.scatter(pool.create(), here, content)
    host = kind(struct, 2 * pages)
    gathered = jax.block_until_ready(pool.gather(buffers, here[::-1].copy()))
    slots = host.alloc(pages)
    assert slots is not None
    host.put(slots, gathered)
    kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(gathered)}
    same = True
    for chosen in (np.arange(pages), np.array([13, 2, 7])):
        captured = host.get(slots[chosen])
        for batch in captured.batches():
            kinds |= {leaf.sharding.memory_kind for leaf in jax.tree.leaves(batch.pages)}
            buffers = pool.scatter(buffers, batch.targets(there[: len(chosen)]), batch.pages)
        back = [bits[: len(chosen)] for bits in bits_of(pool.gather(buffers, there[: len(chosen)]))]
        wanted = [bits[::-1][chosen] for bits in bits_of(content)]
        same &= all(np.array_equal(a, b) for a, b in zip(back, wanted, strict=True))
    return {"same_bits": same, "memory_kinds": sorted(map(str, kinds)), "passed": same and kinds == {"pinned_host"}}


def bit_equality(pool: str) -> dict[str, Any]:
    return {dtype: attempt(lambda dtype=dtype: round_trip(dtype, POOLS[pool])) for dtype in DTYPES}


def in_a_process(what: str, *arguments: str) -> dict[str, Any]:
    """What this script prints as its last line when it does `what`; an abort there is a result here."""
    command = [sys.executable, __file__, "--only", what, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"passed": False, "error": f"no end after {CHILD_SECONDS} s"}
    if done.returncode:
        return {"passed": False, "exit_status": done.returncode, "error": done.stderr[-600:]}
    return json.loads(done.stdout.splitlines()[-1])


class Copies:
    """Copies of `pages` pages between a device pool and pinned host memory."""

    def __init__(self, pages: int) -> None:
        self.pool = PagedKVPool(total_pages=2 * pages, dtype="bfloat16", **SHAPE)
        self.buffers = self.pool.create()
        self.indices = (np.random.default_rng(0).permutation(2 * pages)[:pages] + 1).astype(np.int32)
        self.nbytes = pages * self.pool.bytes_per_page
        self.host: Any = jax.block_until_ready(self.pool.gather(self.buffers, self.indices))

    def out(self) -> Any:
        return self.pool.gather(self.buffers, self.indices)

    def back(self) -> Any:
        self.buffers = self.pool.scatter(self.buffers, self.indices, self.host)
        return self.buffers


def seconds(dispatch: Callable[[], Any], rounds: int) -> list[float]:
    times: list[float] = []
    for _ in range(3 + rounds):
        start = time.perf_counter()
        jax.block_until_ready(dispatch())
        times.append(time.perf_counter() - start)
    return times[3:]


def rates(pages: int, rounds: int) -> dict[str, Any]:
    """GB/s of copies, of the same bytes as one array by `device_put`, and their ratio."""
    copies = Copies(pages)
    device = jax.devices()[0]
    on_device = jax.sharding.SingleDeviceSharding(device)
    pinned = on_device.with_memory_kind("pinned_host")
    far = jax.block_until_ready(jax.device_put(np.ones(copies.nbytes, np.uint8), on_device))
    near = jax.block_until_ready(jax.device_put(far, pinned))
    result: dict[str, Any] = {"pages": pages, "bytes": copies.nbytes}
    cases = {
        "out": (copies.out, lambda: jax.device_put(far, pinned)),
        "in": (copies.back, lambda: jax.device_put(near, on_device)),
    }
    for name, (copy, peak) in cases.items():
        ours, best = float(np.median(seconds(copy, rounds))), float(np.median(seconds(peak, rounds)))
        rate, limit = copies.nbytes / ours / 1e9, copies.nbytes / best / 1e9
        result[name] = {"gb_per_s": rate, "device_put_gb_per_s": limit, "ratio": rate / limit}
    return result


class Forward:
    """A chain of matrix products, as long as a forward pass of a small model."""

    def __init__(self, width: int, depth: int) -> None:
        self.weights = jnp.full((width, width), 1 / width, jnp.bfloat16)
        self.state = jnp.ones((width, width), jnp.bfloat16)

        def run(weights: jax.Array, state: jax.Array) -> jax.Array:
            def layer(_: Any, x: jax.Array) -> jax.Array:
                return x @ weights

            return jax.lax.fori_loop(0, depth, layer, state)

        self._run = jax.jit(run)

    def __call__(self) -> jax.Array:
        return self._run(self.weights, self.state)


def overlap(forward: Forward, pages: int, rounds: int) -> dict[str, Any]:
    """A gather is dispatched, then a forward pass: how often the copy was pending when both dispatches had returned, how long
    they took, and how long until both were complete against the sum of each alone."""
    copies = Copies(pages)
    alone = float(np.median(seconds(forward, rounds)) + np.median(seconds(copies.out, rounds)))
    pending, dispatch, together = 0, list[float](), list[float]()
    for _ in range(rounds):
        start = time.perf_counter()
        pages_out = copies.out()
        logits = forward()
        dispatch.append(time.perf_counter() - start)
        pending += not jax.tree.leaves(pages_out)[-1].is_ready()
        jax.block_until_ready((logits, pages_out))
        together.append(time.perf_counter() - start)
    both = float(np.median(together))
    result = {"pending": pending, "rounds": rounds, "dispatch_ms": 1e3 * float(np.median(dispatch))}
    result |= {"together_ms": 1e3 * both, "one_after_the_other_ms": 1e3 * alone, "passed": pending > rounds // 2 and both < alone}
    return result


def latency(forward: Forward, pages: int, pairs: int, until: Clock) -> dict[str, Any]:
    """The change of a forward pass's time by a copy out dispatched before it, and the control; as many pairs as time allows."""
    copies, rng = Copies(pages), np.random.default_rng(0)
    changes: dict[str, list[float]] = {"on": [], "off again": []}
    for number in range(10 + pairs):
        if number > 30 and until() < 0:
            break
        times: dict[str, float] = {}
        for name in rng.permutation(["off", "off again", "on"]):
            gathered = copies.out() if name == "on" else None
            start = time.perf_counter()
            jax.block_until_ready(forward())
            times[name] = time.perf_counter() - start
            jax.block_until_ready(gathered)
        if number >= 10:
            for name, values in changes.items():
                values.append(times[name] / times["off"] - 1)
    rows: dict[str, Any] = {"pairs": len(changes["on"])}
    for name, values in changes.items():
        median, low, high = median_interval(values)
        rows[name] = {"change": median, "interval": [low, high]}
    low, high = rows["off again"]["interval"]
    return rows | {"passed": rows["on"]["interval"][1] <= 0.02 and low <= 0 <= high and high - low <= 0.02}


def attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Its result, or its error: one part that fails must not cost the others their time on the machine."""
    try:
        return work()
    except Exception as error:
        return {"passed": False, "error": repr(error)[:600]}


def verdict(result: Any) -> str:
    if "error" in result:
        return f"failed: {result['error'].splitlines()[-1][:80]}"
    return {True: "passed", False: "not passed"}.get(result.get("passed"), "measured")


def show(report: dict[str, Any]) -> None:
    for name in POOLS:
        row = report[f"bits {name}"]
        for dtype, result in row.items() if "error" not in row else [("all", row)]:
            print(f"bits, {name:13} {dtype:14} {verdict(result)}")
    for title, result in report["rates"].items():
        for way in ("out", "in"):
            if way in result:
                cells = result[way]
                print(f"copy {way:4} {title:>10} {cells['gb_per_s']:8.2f} GB/s, {cells['ratio']:.2f} of device_put")
    for name in ("overlap", "latency"):
        shown = {key: value for key, value in report[name].items() if key != "error"}
        print(f"{name:9} {verdict(report[name])}  {json.dumps(shown)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/device.json"))
    parser.add_argument("--seconds", type=float, default=420, help="the latency pairs end then")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with small numbers")
    parser.add_argument("--only", choices=["preallocated"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    small = arguments.rehearse
    if arguments.only:
        missing = jax.default_backend() == "cpu" and not small
        print(json.dumps({"result": NOT_RUN} if missing else bit_equality(arguments.only)))
        return
    end = time.monotonic() + arguments.seconds
    # First: this process must not hold the accelerator yet, for most let only one process in, or give it all their memory.
    preallocated = in_a_process("preallocated", *(("--rehearse",) if small else ()))
    if jax.default_backend() == "cpu" and not small:
        print(NOT_RUN)
        write(arguments.out, {"result": NOT_RUN})
        return
    forward = Forward(256, 4) if small else Forward(4096, 24)
    report: dict[str, Any] = {
        "bits per_page": bit_equality("per_page"),
        "bits preallocated": preallocated,
        "rates": {
            f"{pages} pages": attempt(lambda pages=pages: rates(pages, 3 if small else 30))
            for pages in ((8,) if small else (1, 8, 64, 512))
        },
        "overlap": attempt(lambda: overlap(forward, 8 if small else 256, 5 if small else 50)),
        "latency": attempt(lambda: latency(forward, 4, 20 if small else 2000, lambda: end - time.monotonic())),
    }
    show(report)
    write(arguments.out, {"result": "rehearsed on the CPU" if small else "run", **report})


if __name__ == "__main__":
    main()
