"""Tiny Gemma 3, MiMo-V2-Flash and Kimi Linear against transformers' numbers: logits, greedy tokens, pages and states.

Requests are served without a cache, in chunks, by page tables whose pages behind the window are given back as the request goes on
and handed to others, and by states that are written to another slot than they are read from.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvcache_conformance.tiny_hybrids import tiny_gemma3, tiny_kimi_linear, tiny_mimo_v2_flash
from kvcache_conformance.tiny_models import TinyModel, tensors_digest, tiny_tensors, token_ids, write_model_folder
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_engine.model.loaded import LoadedModel, load_model

GOLDEN = Path(__file__).parent / "golden"
TINY: dict[str, Callable[[], TinyModel]] = {
    "gemma3": tiny_gemma3,
    "mimo_v2_flash": tiny_mimo_v2_flash,
    "kimi_linear": tiny_kimi_linear,
}
TOLERANCE = {"gemma3": 2e-4, "mimo_v2_flash": 5e-4, "kimi_linear": 5e-4}
MEMORY_TOLERANCE = 2e-4
NEW_TOKENS = 24
KEPT = (32, 64)


@pytest.fixture(scope="module")
def goldens() -> dict[str, dict[str, np.ndarray]]:
    return {name: dict(np.load(GOLDEN / f"tiny_{name}.npz")) for name in TINY}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return {name: write_model_folder(tiny(), tmp_path_factory.mktemp("hybrids") / name) for name, tiny in TINY.items()}


@pytest.fixture(scope="module")
def models(folders) -> dict[str, LoadedModel]:
    return {name: load_model(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("name", TINY)
def test_weights_and_prompts_are_the_ones_the_numbers_were_made_with(goldens, name) -> None:
    golden, model = goldens[name], TINY[name]()
    meta = json.loads(str(golden["meta"]))
    assert {key: list(shape) for key, shape in model.shapes.items()} == meta["shapes"]
    assert tensors_digest(tiny_tensors(model)) == meta["weights_sha256"]
    assert token_ids(model, len(golden["ids"])).tolist() == golden["ids"].tolist()


def test_what_the_builder_hears_of_them(models) -> None:
    specs = {name: model.spec for name, model in models.items()}
    assert [spec.model_class for spec in specs.values()] == ["swa", "swa", "hybrid_recurrent"]
    assert specs["gemma3"].components == (ComponentSpec("full"), ComponentSpec("swa", window=16))
    assert specs["mimo_v2_flash"].components == specs["gemma3"].components
    assert specs["kimi_linear"].components == (ComponentSpec("full"), ComponentSpec("recurrent", state_shape=(2, 16, 16)))


def check_pages(host, model, request, golden, component: str) -> None:
    """What the pages hold for the prompt's tokens; of a window the golden values are the last 15 tokens. Pages that the request
    has given back meanwhile are left out."""
    n, table = len(golden["ids"]), request.tables[component]
    held = host.pages(np.maximum(table, 1), component)
    present = np.repeat(table > 0, host.page_size)[:n]
    for i, layer in enumerate(model.config.layers_of(component)):
        for kind, arrays in zip("kv", held, strict=True):
            tokens = np.asarray(arrays[i])[: len(table)].reshape(-1, *arrays[i].shape[2:])[:n]
            expected = golden[f"cache/layer{layer}.{kind}"].swapaxes(0, 1)
            kept = present[-len(expected) :]
            assert component == "swa" or kept.all()
            np.testing.assert_allclose(
                tokens[-len(expected) :][kept], expected[kept], rtol=0, atol=MEMORY_TOLERANCE, err_msg=f"layer {layer} {kind}"
            )


def check_states(host, model, slot: int, golden, prefix: str) -> None:
    """The golden convolution has one input more than is needed to go on."""
    states = host.pages(np.array([slot], np.int32), "recurrent")
    for i, layer in enumerate(model.config.layers_of("recurrent")):
        conv, state = np.asarray(states.conv[i])[0], np.asarray(states.recurrent[i])[0]
        np.testing.assert_allclose(conv.T, golden[f"{prefix}/layer{layer}.conv"][:, 1:], rtol=0, atol=MEMORY_TOLERANCE)
        np.testing.assert_allclose(state, golden[f"{prefix}/layer{layer}.recurrent"], rtol=0, atol=MEMORY_TOLERANCE)


def few_pages(model: LoadedModel, page_size: int, chunk: int) -> dict[str, int]:
    """Just enough for three requests of up to 124 tokens: what leaves a window must come back, or the pool runs dry."""
    window_pages = -(-(15 + chunk) // page_size) + 2
    totals = {"full": 3 * -(-124 // page_size), "swa": 3 * window_pages, "recurrent": 3 * (2 + len(KEPT))}
    return {name: totals[name] for name in model.config.components}


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 16), (16, 32), (16, 13), (64, 100), (64, 1)])
@pytest.mark.parametrize("name", TINY)
def test_logits_memory_and_greedy(models, goldens, bare_host, name, page_size, chunk) -> None:
    model, golden, tolerance = models[name], goldens[name], TOLERANCE[name]
    ids = golden["ids"]
    host = bare_host(model, page_size=page_size, total_pages=few_pages(model, page_size, chunk), max_chunk=chunk)
    # Two other requests share every batch, one of them a prefix: neither may leak into the other rows.
    requests = [host.add(prompt, NEW_TOKENS) for prompt in (ids, ids[:37], ids[::-1][:5])]
    request, prefix, other = requests
    while request.computed < len(ids):
        host.step([r for r in requests if len(r.greedy) < NEW_TOKENS], keep_at=KEPT)
    np.testing.assert_allclose(np.stack(request.logits), golden["logits"], rtol=0, atol=tolerance)
    for component in host.reach:
        check_pages(host, model, request, golden, component)
    for component in host.states:
        check_states(host, model, request.slots[component], golden, "cache")
        ends = [at for at in KEPT if at % chunk == 0]
        assert sorted(request.snapshots) == ends
        for at in ends:
            check_states(host, model, request.snapshots[at][component], golden, f"cache_at_{at}")
    while waiting := [r for r in requests if len(r.greedy) < NEW_TOKENS]:
        host.step(waiting, all_logits=False, keep_at=KEPT)
    assert request.greedy == golden["greedy"].tolist()
    np.testing.assert_allclose(np.stack(prefix.logits[:37]), golden["logits"][:37], rtol=0, atol=tolerance)
    assert len(other.greedy) == NEW_TOKENS


@pytest.mark.parametrize("name", TINY)
def test_on_two_devices(folders, goldens, bare_host, mesh_of, name) -> None:
    mesh, golden = mesh_of(2), goldens[name]
    model = load_model(folders[name], mesh=mesh)
    host = bare_host(model, page_size=16, total_pages=24, max_chunk=50, mesh=mesh)
    (request,) = host.serve([golden["ids"]], NEW_TOKENS)
    np.testing.assert_allclose(np.stack(request.logits[: len(golden["ids"])]), golden["logits"], rtol=0, atol=TOLERANCE[name])
    assert request.greedy == golden["greedy"].tolist()


@pytest.mark.parametrize("name", TINY)
def test_foreign_bytes_in_the_pools_change_nothing(models, goldens, bare_host, name) -> None:
    """Pages and slots that were never written for a row, and what lies behind its window, may hold anything, NaN included."""
    model, golden = models[name], goldens[name]
    host = bare_host(model, page_size=16, total_pages=few_pages(model, 16, 20), max_chunk=20)
    buffers = host.pools.take()
    for component, pool in host.by_component.items():
        everywhere = np.arange(1, 1 + pool.total_pages, dtype=np.int32)
        captured = pool.gather(buffers[component], everywhere)
        poison = type(captured)(*([np.full(a.shape, np.nan, np.float32) for a in arrays] for arrays in captured))
        buffers[component] = pool.scatter(buffers[component], everywhere, poison)
    host.pools.give(buffers)
    (request,) = host.serve([golden["ids"]], NEW_TOKENS)
    np.testing.assert_allclose(np.stack(request.logits[: len(golden["ids"])]), golden["logits"], rtol=0, atol=TOLERANCE[name])
    assert request.greedy == golden["greedy"].tolist()
    dummies = [np.asarray(a[0]) for held in host.pools.take().values() for arrays in held for a in arrays]
    assert all(np.array_equal(dummy, np.zeros_like(dummy)) for dummy in dummies)


def test_a_state_that_was_gone_on_from_is_unchanged_and_serves_again(models, goldens, bare_host) -> None:
    """Copied on use: a second request starts from the snapshot at 64 while the first has long gone on."""
    model, golden = models["kimi_linear"], goldens["kimi_linear"]
    ids = golden["ids"].tolist()
    host = bare_host(model, page_size=16, total_pages=24, max_chunk=32)
    (first,) = host.serve([ids], 2, keep_at=KEPT)
    second = host.add(ids, NEW_TOKENS)
    second.tables["full"][:4] = first.table[:4]
    second.computed, second.slots["recurrent"] = 64, first.snapshots[64]["recurrent"]
    second.snapshots[64] = dict(first.snapshots[64])
    while len(second.greedy) < NEW_TOKENS:
        host.step([second])
    np.testing.assert_allclose(np.stack(second.logits[:36]), golden["logits"][64:], rtol=0, atol=TOLERANCE["kimi_linear"])
    assert second.greedy == golden["greedy"].tolist()
    check_states(host, model, first.snapshots[64]["recurrent"], golden, "cache_at_64")
