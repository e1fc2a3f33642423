"""Tiny Qwen3 against transformers' numbers: logits, cache contents, greedy tokens; and what a pool does under the runner."""

import json

import numpy as np
import pytest

from kvcache_conformance.tiny_models import tensors_digest, tiny_qwen3, tiny_tensors
from kvcache_engine.model.loaded import load_model

TOLERANCE = 2e-4
NEW_TOKENS = 24


def test_weights_are_the_ones_the_numbers_were_made_with(qwen3_golden) -> None:
    meta, model = json.loads(str(qwen3_golden["meta"])), tiny_qwen3()
    assert {name: list(shape) for name, shape in model.shapes.items()} == meta["shapes"]
    assert tensors_digest(tiny_tensors(model)) == meta["weights_sha256"]


def check_cache(host, request, golden) -> None:
    """Pages hold [page, slot, head, channel]; the golden cache is [head, token, channel]."""
    n = len(golden["ids"])
    pages = host.pages(request.table)
    for kind in ("k", "v"):
        for layer, array in enumerate(getattr(pages, kind)):
            tokens = np.asarray(array)[: len(request.table)].reshape(-1, *array.shape[2:])[:n]
            expected = golden[f"cache/layer{layer}.{kind}"].swapaxes(0, 1)
            np.testing.assert_allclose(tokens, expected, rtol=0, atol=TOLERANCE, err_msg=f"layer {layer} {kind}")


@pytest.mark.parametrize(
    ("page_size", "chunk", "devices"),
    [(1, 48, 1), (1, 13, 2), (16, 13, 1), (16, 48, 2), (16, 1, 1), (64, 20, 1), (64, 48, 4)],
)
def test_logits_cache_and_greedy(qwen3_folder, qwen3_golden, bare_host, mesh_of, page_size, chunk, devices) -> None:
    mesh, ids = mesh_of(devices), qwen3_golden["ids"]
    model = load_model(qwen3_folder, mesh=mesh)
    host = bare_host(model, page_size=page_size, total_pages=300, max_chunk=chunk, mesh=mesh)
    assert host.pool.heads_split == (devices == 2)  # two kv heads: split on 2 devices, replicated on 4
    # Two other requests share every batch, one of them a prefix: neither may leak into the other rows.
    request, prefix, other = host.serve([ids, ids[:17], ids[::-1][:5]], NEW_TOKENS)
    logits = np.stack(request.logits[: len(ids)])
    np.testing.assert_allclose(logits, qwen3_golden["logits"], rtol=0, atol=TOLERANCE)
    assert request.greedy == qwen3_golden["greedy"].tolist()
    np.testing.assert_allclose(np.stack(prefix.logits[:17]), qwen3_golden["logits"][:17], rtol=0, atol=TOLERANCE)
    assert len(other.greedy) == NEW_TOKENS
    check_cache(host, request, qwen3_golden)


def test_foreign_bytes_in_the_pool_change_nothing(qwen3, qwen3_golden, bare_host) -> None:
    """Pages that were never written for a row, and slots beyond its length, may hold anything, NaN included."""
    ids = qwen3_golden["ids"]
    host = bare_host(qwen3, page_size=16, total_pages=16, max_chunk=20)
    everywhere = np.arange(1, 17, dtype=np.int32)
    buffers = host.pools.take()
    captured = host.pool.gather(buffers["full"], everywhere)
    poison = type(captured)(*([np.full(a.shape, np.nan, np.float32) for a in arrays] for arrays in captured))
    host.pools.give({"full": host.pool.scatter(buffers["full"], everywhere, poison)})
    (request,) = host.serve([ids], NEW_TOKENS)
    np.testing.assert_allclose(np.stack(request.logits[: len(ids)]), qwen3_golden["logits"], rtol=0, atol=TOLERANCE)
    assert request.greedy == qwen3_golden["greedy"].tolist()
    dummy = [np.asarray(a[0]) for arrays in host.pools.take()["full"] for a in arrays]
    assert all(np.array_equal(page, np.zeros_like(page)) for page in dummy)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("bfloat16", 0.2), ("float16", 0.02), ("float8_e4m3fn", 2.0), ("float8_e5m2", 4.0)]
)
def test_pools_of_other_dtypes(qwen3, qwen3_golden, bare_host, dtype, tolerance) -> None:
    """Keys and values lose precision on the way through such a pool, so logits are near, not equal."""
    host = bare_host(qwen3, page_size=16, total_pages=16, dtype=dtype)
    (request,) = host.serve([qwen3_golden["ids"]], 2)
    difference = np.abs(np.stack(request.logits[:48]) - qwen3_golden["logits"]).max()
    assert 0 < difference < tolerance


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_a_forward_writes_the_pool_in_place(qwen3_folder, bare_host, mesh_of, dtype, devices) -> None:
    """A copy of the pool in every step would make decoding as slow as the pool is large."""
    mesh = mesh_of(devices)
    host = bare_host(load_model(qwen3_folder, mesh=mesh), page_size=16, total_pages=64, mesh=mesh, dtype=dtype)
    buffers = host.pools.take()

    def places(arrays) -> list[int]:
        return [shard.data.unsafe_buffer_pointer() for array in arrays for shard in array.addressable_shards]

    before, old = places([*buffers["full"].k, *buffers["full"].v]), buffers["full"].k[0]
    host.pools.give(buffers)
    host.serve([[1, 2, 3]], 3)
    after = host.pools.take()["full"]
    assert places([*after.k, *after.v]) == before
    assert old.is_deleted()
