"""Models, and a bare host that drives the runner without scheduler or cache: chunks, batches, greedy continuation.

Devices and promotion rules are set by the conftest at the root.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import Mesh

from kvcache_conformance.tiny_models import tiny_qwen3, write_model_folder
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.batch import Batch, StateSlots
from kvcache_engine.mesh import make_mesh
from kvcache_engine.model.loaded import LoadedModel, load_model
from kvcache_engine.pools.model_pools import model_pools
from kvcache_engine.pools.page_allocator import PageAllocator
from kvcache_engine.pools.pool_set import EnginePools
from kvcache_engine.runner import ModelRunner

GOLDEN = Path(__file__).parent / "golden"


@dataclass
class Served:
    """One request: its ids so far, its pages and states, and the logits row of every position computed."""

    ids: list[int]
    prompt_length: int
    tables: dict[str, np.ndarray]
    slots: dict[str, int] = field(default_factory=dict)
    """The running state by component, 0 before the first step."""
    snapshots: dict[int, dict[str, int]] = field(default_factory=dict)
    """By position: the states that were left there, in slots that stay this request's."""
    computed: int = 0
    logits: list[np.ndarray] = field(default_factory=list)

    @property
    def table(self) -> np.ndarray:
        return self.tables["full"]

    @property
    def greedy(self) -> list[int]:
        return self.ids[self.prompt_length :]


class BareHost:
    """A model with pools of `total_pages`, or of so many by component. A request keeps the pages it was given, but not those
    behind a window: they go back as soon as they may, and others get them. States go on in another slot with every step."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        page_size: int,
        total_pages: int | Mapping[str, int],
        max_chunk: int = 512,
        mesh: Mesh | None = None,
        dtype: str = "float32",
    ) -> None:
        config = model.config
        self.page_size, self.max_chunk = page_size, max_chunk
        totals = dict.fromkeys(config.components, total_pages) if isinstance(total_pages, int) else total_pages
        self.by_component = model_pools(config, page_size, totals, mesh, dtype)
        self.pool = self.by_component["full"]
        self.allocators = {name: PageAllocator(pool.total_pages) for name, pool in self.by_component.items()}
        self.allocator = self.allocators["full"]
        self.reach = {name: mixer.reach() for name, mixer in config.page_mixers().items()}
        self.states = list(config.state_mixers())
        self.pools = EnginePools(self.by_component, TransferQueue(self.by_component))
        self.runner = ModelRunner(model, self.by_component, page_size, mesh, max_chunk=max_chunk)

    def add(self, prompt: Sequence[int], new_tokens: int) -> Served:
        pages = -(-(len(prompt) + new_tokens) // self.page_size)
        tables = {name: self.alloc(name, pages) if reach is None else numbers() for name, reach in self.reach.items()}
        return Served([int(i) for i in prompt], len(prompt), tables, dict.fromkeys(self.states, 0))

    def alloc(self, name: str, n: int) -> np.ndarray:
        taken = self.allocators[name].alloc(n)
        assert taken is not None
        return taken

    def step(self, requests: Sequence[Served], *, all_logits: bool = True, keep_at: Sequence[int] = ()) -> None:
        """Compute the next chunk of each request; one whose ids are all computed gets its most likely next token. States at the
        positions `keep_at` are kept where a chunk ends there."""
        pieces = [r.ids[r.computed : r.computed + self.max_chunk] for r in requests]
        for request, piece in zip(requests, pieces, strict=True):
            self.reach_out(request, request.computed + len(piece))
        ids = stacked(pieces)
        start = np.array([r.computed for r in requests], np.int32)
        lengths = np.array([len(piece) for piece in pieces], np.int32)
        tables = {name: stacked([r.tables[name] for r in requests]) for name in self.reach}
        targets = {name: self.alloc(name, len(requests)) for name in self.states}
        slots = {name: StateSlots(numbers(*(r.slots[name] for r in requests)), targets[name]) for name in self.states}
        buffers, logits = self.runner.run(self.pools.take(), Batch(ids, start, lengths, tables, slots), all_logits=all_logits)
        self.pools.give(buffers)
        rows = np.asarray(logits)
        for i, (request, piece) in enumerate(zip(requests, pieces, strict=True)):
            self.move_on(request, {name: int(targets[name][i]) for name in self.states}, keep_at)
            request.computed += len(piece)
            self.forget(request)
            request.logits.extend(rows[i, : len(piece)] if all_logits else [rows[i]])
            if request.computed == len(request.ids):
                request.ids.append(int(request.logits[-1].argmax()))

    def reach_out(self, request: Served, n_tokens: int) -> None:
        """Pages of windows up to `n_tokens`."""
        for name, table in request.tables.items():
            more = self.alloc(name, max(0, -(-n_tokens // self.page_size) - len(table)))
            request.tables[name] = np.concatenate([table, more])

    def forget(self, request: Served) -> None:
        """Free what lies behind the window of the last page boundary."""
        at = request.computed // self.page_size * self.page_size
        for name, reach in self.reach.items():
            if reach is not None:
                behind = request.tables[name][: max(0, at - reach + 1) // self.page_size]
                self.allocators[name].free(behind[behind > 0])
                behind[:] = 0

    def move_on(self, request: Served, targets: Mapping[str, int], keep_at: Sequence[int]) -> None:
        for name, target in targets.items():
            old, request.slots[name] = request.slots[name], target
            if old and request.computed in keep_at:
                request.snapshots.setdefault(request.computed, {})[name] = old
            elif old and not any(old == kept.get(name) for kept in request.snapshots.values()):
                self.allocators[name].free(numbers(old))

    def serve(self, prompts: Sequence[Sequence[int]], new_tokens: int, *, keep_at: Sequence[int] = ()) -> list[Served]:
        """All `prompts` in one batch, shorter ones decoding while longer ones are still in their prompt."""
        requests = [self.add(prompt, new_tokens) for prompt in prompts]
        while waiting := [r for r in requests if len(r.greedy) < new_tokens]:
            # The common path gives logits of last tokens only; take it wherever every position is a last one.
            self.step(waiting, all_logits=any(r.computed < r.prompt_length for r in waiting), keep_at=keep_at)
        return requests

    def pages(self, indices: np.ndarray, name: str = "full") -> Any:
        """Captured by the pool of component `name`."""
        buffers = self.pools.take()
        pages = self.by_component[name].gather(buffers[name], indices)
        self.pools.give(buffers)
        return pages


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def stacked(rows: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """Rows of different lengths, zeros behind the shorter ones."""
    whole = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return whole


@pytest.fixture(scope="session")
def bare_host() -> type[BareHost]:
    return BareHost


@pytest.fixture(scope="session")
def mesh_of() -> Callable[[int], Mesh | None]:
    """The mesh of n devices; one device is None."""
    return make_mesh


@pytest.fixture(scope="session")
def smollm2_golden() -> dict:
    return json.loads((GOLDEN / "smollm2_135m.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """Only for tests marked `real_model`."""
    return load_model("smollm2-135m")


@pytest.fixture(scope="session")
def qwen3_golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "tiny_qwen3.npz") as file:
        return dict(file)


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tiny_qwen3(), tmp_path_factory.mktemp("models") / "tiny-qwen3")


@pytest.fixture(scope="session")
def qwen3(qwen3_folder: Path) -> LoadedModel:
    return load_model(qwen3_folder)
