"""Models, and a bare host that drives the runner without scheduler or cache: chunks, batches, greedy continuation.

Devices and promotion rules are set by the conftest at the root.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import Mesh

from kvcache_conformance.tiny_models import tiny_qwen3, write_model_folder
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.batch import Batch
from kvcache_engine.mesh import make_mesh
from kvcache_engine.model.loaded import LoadedModel, load_model
from kvcache_engine.pools.model_pools import model_pools
from kvcache_engine.pools.page_allocator import PageAllocator
from kvcache_engine.pools.paged_kv_pool import Pages
from kvcache_engine.pools.pool_set import EnginePools
from kvcache_engine.runner import ModelRunner

GOLDEN = Path(__file__).parent / "golden"


@dataclass
class Served:
    """One request: its ids so far, its pages, and the logits row of every position computed."""

    ids: list[int]
    prompt_length: int
    table: np.ndarray
    computed: int = 0
    logits: list[np.ndarray] = field(default_factory=list)

    @property
    def greedy(self) -> list[int]:
        return self.ids[self.prompt_length :]


class BareHost:
    """A model with pools of `total_pages`; every request keeps the pages it was given."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        page_size: int,
        total_pages: int,
        max_chunk: int = 512,
        mesh: Mesh | None = None,
        dtype: str = "float32",
    ) -> None:
        self.page_size, self.max_chunk = page_size, max_chunk
        self.pool = model_pools(model.config, page_size, {"full": total_pages}, mesh, dtype)["full"]
        self.allocator = PageAllocator(total_pages)
        self.pools = EnginePools({"full": self.pool}, TransferQueue({"full": self.pool}))
        self.runner = ModelRunner(model, {"full": self.pool}, page_size, mesh, max_chunk=max_chunk)

    def add(self, prompt: Sequence[int], new_tokens: int) -> Served:
        table = self.allocator.alloc(-(-(len(prompt) + new_tokens) // self.page_size))
        assert table is not None
        return Served([int(i) for i in prompt], len(prompt), table)

    def step(self, requests: Sequence[Served], *, all_logits: bool = True) -> None:
        """Compute the next chunk of each request; one whose ids are all computed gets its most likely next token."""
        pieces = [r.ids[r.computed : r.computed + self.max_chunk] for r in requests]
        steps, width = max(map(len, pieces)), max(len(r.table) for r in requests)
        ids = np.zeros((len(requests), steps), np.int32)
        table = np.zeros((len(requests), width), np.int32)
        for i, (request, piece) in enumerate(zip(requests, pieces, strict=True)):
            ids[i, : len(piece)] = piece
            table[i, : len(request.table)] = request.table
        start = np.array([r.computed for r in requests], np.int32)
        lengths = np.array([len(piece) for piece in pieces], np.int32)
        buffers, logits = self.runner.run(self.pools.take(), Batch(ids, start, lengths, {"full": table}), all_logits=all_logits)
        self.pools.give(buffers)
        rows = np.asarray(logits)
        for i, (request, piece) in enumerate(zip(requests, pieces, strict=True)):
            request.computed += len(piece)
            request.logits.extend(rows[i, : len(piece)] if all_logits else [rows[i]])
            if request.computed == len(request.ids):
                request.ids.append(int(request.logits[-1].argmax()))

    def serve(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Served]:
        """All `prompts` in one batch, shorter ones decoding while longer ones are still in their prompt."""
        requests = [self.add(prompt, new_tokens) for prompt in prompts]
        while waiting := [r for r in requests if len(r.greedy) < new_tokens]:
            # The common path gives logits of last tokens only; take it wherever every position is a last one.
            self.step(waiting, all_logits=any(r.computed < r.prompt_length for r in waiting))
        return requests

    def pages(self, indices: np.ndarray) -> Pages:
        buffers = self.pools.take()
        pages = self.pool.gather(buffers["full"], indices)
        self.pools.give(buffers)
        return pages


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
