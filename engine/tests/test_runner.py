"""ModelRunner: bounded compilation, counting, and batches it refuses."""

import dataclasses
import logging
from typing import Any

import jax
import numpy as np
import pytest

from kvcache_engine.batch import Batch
from kvcache_engine.buckets import bucket
from kvcache_engine.errors import ShardingError
from kvcache_engine.mesh import make_mesh
from kvcache_engine.model.loaded import load_model
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_engine.runner import ModelRunner


def numbers(*values) -> np.ndarray:
    return np.array(values, dtype=np.int32)


GOOD = Batch(numbers([1, 2, 3], [4, 0, 0]), numbers(0, 16), numbers(3, 1), {"full": numbers([1, 0], [2, 3])})


def run(host, batch) -> np.ndarray:
    buffers = host.pools.take()
    try:
        buffers, logits = host.runner.run(buffers, batch)
    finally:
        host.pools.give(buffers)
    return np.asarray(logits)


@pytest.mark.parametrize(("n", "smallest", "size"), [(1, 1, 1), (2, 1, 2), (3, 1, 4), (4, 1, 4), (5, 16, 16), (17, 16, 32)])
def test_buckets(n, smallest, size) -> None:
    assert bucket(n, smallest) == size


def test_a_second_pass_compiles_nothing(qwen3, bare_host, caplog) -> None:
    """By our own count, and by JAX's log, which also sees what a changed layout would compile again."""
    host = bare_host(qwen3, page_size=4, total_pages=200, max_chunk=32)

    def workload(salt: int) -> None:
        for lengths in ([3], [40, 7, 90], [12, 12]):
            prompts = [[(salt * 31 + i * 7) % 256 for i in range(length)] for length in lengths]
            for request in host.serve(prompts, 5):
                host.allocator.free(request.table)

    workload(1)
    first = host.runner.compile_count
    assert first > 0
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        workload(2)
    assert host.runner.compile_count == first
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
    caplog.clear()
    # The log would have shown it: a longer prompt is a new shape.
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        host.serve([[1] * 200], 1)
    assert host.runner.compile_count > first
    assert [record for record in caplog.records if "Compiling" in record.getMessage()]


def test_shapes_are_bounded(qwen3, bare_host) -> None:
    """70 different lengths, few programs: chunks of 16 and of 1, contexts of 64 and 128 tokens, one row."""
    host = bare_host(qwen3, page_size=16, total_pages=8, max_chunk=16)
    for length in range(1, 71):
        (request,) = host.serve([[5] * length], 2)
        host.allocator.free(request.table)
    # Embedding by T, layers by T and context, logits of all and of last positions by T.
    assert host.runner.compile_count <= 2 + 4 + 4


def test_padding_is_not_counted(qwen3, bare_host) -> None:
    host = bare_host(qwen3, page_size=16, total_pages=4)
    run(host, GOOD)
    assert host.runner.tokens_computed == 4


def test_rows_do_not_depend_on_their_batch(qwen3, bare_host) -> None:
    host = bare_host(qwen3, page_size=16, total_pages=4)
    together = run(host, GOOD)[:2]
    alone = [
        run(host, Batch(GOOD.ids[row], GOOD.start[row], GOOD.lengths[row], {"full": GOOD.page_tables["full"][row]}))
        for row in (slice(0, 1), slice(1, 2))
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": numbers([1, 2, 256], [4, 0, 0])}, "token ids must be 0 to 255"),
        ({"ids": numbers([1, -2, 3], [4, 0, 0])}, "token ids must be 0 to 255"),
        ({"lengths": numbers(3, 0)}, "1 to 3 tokens"),
        ({"lengths": numbers(4, 1)}, "1 to 3 tokens"),
        ({"lengths": numbers(3)}, "the same rows"),
        ({"start": numbers(0, -1)}, "positions -1 to"),
        ({"start": numbers(0, 32)}, "positions 0 to 33 must fit a context of 512 tokens and 2 pages of 16"),
        ({"start": numbers(16, 16)}, "dummy page 0"),
        ({"page_tables": {"full": numbers([1, 0], [2, 5])}}, "page numbers must be 0 to 4"),
        ({"page_tables": {"full": numbers([1, 0])}}, "the same rows"),
        ({"ids": np.zeros((2, 65), np.int32), "lengths": numbers(65, 1)}, "1 to 64 tokens"),
    ],
)
def test_batches_that_are_refused(qwen3, bare_host, changes, message) -> None:
    """Before anything is donated: the same pools serve a good batch afterwards."""
    host = bare_host(qwen3, page_size=16, total_pages=4, max_chunk=64)
    with pytest.raises(ValueError, match=message):
        run(host, dataclasses.replace(GOOD, **changes))
    assert host.runner.tokens_computed == 0
    assert np.isfinite(run(host, GOOD)).all()


def test_pools_that_do_not_fit_the_model(qwen3, mesh_of) -> None:
    sizes: dict[str, Any] = {"layers": 2, "total_pages": 4, "page_size": 16, "kv_heads": 2, "head_dim": 32}
    with pytest.raises(ValueError, match="pools for \\['swa'\\]"):
        ModelRunner(qwen3, {"swa": PagedKVPool(**sizes)}, 16)
    changes: list[dict[str, Any]] = [{"layers": 3}, {"page_size": 8}, {"kv_heads": 1}, {"head_dim": 16}]
    for change in changes:
        with pytest.raises(ValueError, match="the model needs 2 layers of pages"):
            ModelRunner(qwen3, {"full": PagedKVPool(**(sizes | change))}, 16)
    with pytest.raises(ValueError, match="floating-point numbers; the pool holds int8"):
        ModelRunner(qwen3, {"full": PagedKVPool(**sizes, dtype="int8")}, 16)
    mesh = mesh_of(2)
    with pytest.raises(ValueError, match="on the same mesh"):
        ModelRunner(qwen3, {"full": PagedKVPool(**sizes, mesh=mesh)}, 16, mesh)


def test_meshes() -> None:
    assert make_mesh(1) is None
    mesh = make_mesh(4)
    assert mesh is not None
    assert mesh.shape == {"tensor": 4}
    for size in (0, 5):
        with pytest.raises(ShardingError, match=f"tensor parallel size {size} needs"):
            make_mesh(size)


def test_heads_that_fit_no_way_are_refused_before_the_weights_are_read(qwen3_folder, mesh_of) -> None:
    reports: list[str] = []
    with pytest.raises(ShardingError, match="2 kv heads cannot be laid out on 3 devices"):
        load_model(qwen3_folder, lambda what, _done, _total: reports.append(what), mesh_of(3))
    assert "reading tensors" not in reports
