"""Runs workers, ours and the peers', as processes of their own: one after the other, taking turns, so that both meet the same
weather on a machine that is shared. It knows commands and JSON, not what is measured.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEADY = {"MALLOC_TRIM_THRESHOLD_": str(2**33), "MALLOC_MMAP_MAX_": "0"}
"""For glibc: memory that was freed stays with the process, as in a server under load. Both sides get it."""
HERE = Path(__file__).resolve().parent.parent


class WorkerFailed(Exception):
    """A worker ended with an error; its last lines say which."""


@dataclass(frozen=True)
class Worker:
    """One side. `command`: an interpreter with a module and its fixed arguments; `environment` is added to this process's own;
    `path`: folders put on PYTHONPATH besides the benchmarks'."""

    name: str
    command: Sequence[str]
    environment: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()

    def run(self, *arguments: str) -> Any:
        """The JSON that the worker prints last. Raises WorkerFailed."""
        environment = os.environ | STEADY | dict(self.environment) | {"PYTHONPATH": os.pathsep.join([str(HERE), *self.path])}
        done = subprocess.run(
            [*self.command, *arguments], env=environment, capture_output=True, text=True, check=False, cwd=HERE.parent
        )
        if done.returncode:
            raise WorkerFailed(f"{self.name} {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])


@dataclass(frozen=True)
class Peers:
    """`sglang`, `vllm`: the workers of the peers that can be run here; None for the others."""

    sglang: Worker | None
    vllm: Worker | None


def ours() -> Worker:
    return Worker("ours", (sys.executable, "-m", "radix_tree.ours"))


def peers(scripts: Path | None, python: Path | None, sglang: Path | None, vllm: Path | None) -> Peers:
    """`scripts`: the folder of the peers' scripts; `python`: their interpreter; `sglang`, `vllm`: the unpacked wheels."""
    if scripts is None or python is None:
        return Peers(None, None)
    scripts, interpreter = scripts.resolve(), str(python.absolute())
    tree = pages = None
    if sglang is not None:
        command = (interpreter, "-m", "radix_tree.peer_sglang", "--script", str(scripts / "bench_sglang_tree.py"))
        tree = Worker("sglang", command, (("SGLANG_PEER", str(sglang.resolve())),))
    if vllm is not None:
        command = (interpreter, "-m", "radix_tree.peer_vllm", "--script", str(scripts / "bench_vllm_kvm.py"))
        pages = Worker("vllm", command, path=(str(vllm.resolve()),))
    return Peers(tree, pages)


def take_turns(rounds: int, sides: Sequence[tuple[Worker, Sequence[str]]]) -> list[list[Any]]:
    """Every side's results, in the order of `sides`. Who begins alternates."""
    results: list[list[Any]] = [[] for _ in sides]
    for number in range(rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for i in order:
            worker, arguments = sides[i]
            results[i].append(worker.run(*arguments))
    return results
