"""SmolLM2-135M-Instruct against transformers' numbers: token ids, logits, greedy tokens."""

import numpy as np
import pytest

from kvcache_engine.model.loaded import load_model

pytestmark = pytest.mark.real_model

TOLERANCE = 1e-3
NEW_TOKENS = 24
SOME = ("short", "long", "unicode", "single_token")


def check(requests, items) -> None:
    for request, item in zip(requests, items, strict=True):
        for golden in item["positions"]:
            row = request.logits[golden["pos"]].astype(np.float64)
            np.testing.assert_allclose(row[golden["top_ids"]], golden["top_logits"], rtol=0, atol=TOLERANCE, err_msg=item["name"])
            logsumexp = row.max() + np.log(np.exp(row - row.max()).sum())
            assert abs(logsumexp - golden["logsumexp"]) < TOLERANCE, item["name"]
        assert request.greedy == item["greedy_24"], item["name"]


def named(golden, names):
    items = [item for item in golden["items"] if item["name"] in names]
    assert len(items) == len(names)
    return items


def total_pages(items, page_size) -> int:
    return sum(-(-(item["n_ids"] + NEW_TOKENS) // page_size) for item in items)


def test_token_ids_of_every_prompt(smollm2, smollm2_golden) -> None:
    for item in smollm2_golden["items"]:
        assert smollm2.tokenizer.encode(item["text"]).tolist() == item["ids"], item["name"]


def test_chat_template_and_its_default_system_message(smollm2, smollm2_golden) -> None:
    by_name = {item["name"]: item["ids"] for item in smollm2_golden["items"]}
    hi = [{"role": "user", "content": "Hi"}]
    assert smollm2.tokenizer.encode_chat(hi).tolist() == by_name["chat_default_system"]
    sky = [
        {"role": "system", "content": "You are a terse assistant who answers in one sentence."},
        {"role": "user", "content": "Why is the sky blue at noon but red at sunset?"},
    ]
    assert smollm2.tokenizer.encode_chat(sky).tolist() == by_name["chat_system"]


def test_decoded_text_and_end_token(smollm2, smollm2_golden) -> None:
    for item in smollm2_golden["items"]:
        assert smollm2.tokenizer.decode(item["greedy_24"], keep_control=True) == item["greedy_text"], item["name"]
        end = item["greedy_first_eos_index"]
        ends = [i for i, token in enumerate(item["greedy_24"]) if token in smollm2.tokenizer.end_ids]
        assert (ends[0] if ends else None) == end, item["name"]


def test_identity(smollm2, smollm2_golden) -> None:
    assert smollm2.model_version == smollm2_golden["weights"]["sha256"]
    assert smollm2.spec.model_class == "full_attention"
    assert [component.name for component in smollm2.spec.components] == ["full"]


def test_all_prompts_in_one_batch(smollm2, smollm2_golden, bare_host) -> None:
    items = smollm2_golden["items"]
    host = bare_host(smollm2, page_size=16, total_pages=total_pages(items, 16))
    check(host.serve([item["ids"] for item in items], NEW_TOKENS), items)
    # Every position once: prompts, and all answers but their last token.
    assert host.runner.tokens_computed == sum(item["n_ids"] + NEW_TOKENS - 1 for item in items)


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 128), (64, 50)])
def test_chunked_prefill_at_other_page_sizes(smollm2, smollm2_golden, bare_host, page_size, chunk) -> None:
    items = named(smollm2_golden, SOME)
    host = bare_host(smollm2, page_size=page_size, total_pages=total_pages(items, page_size), max_chunk=chunk)
    check(host.serve([item["ids"] for item in items], NEW_TOKENS), items)


def test_on_three_devices(smollm2_golden, bare_host, mesh_of) -> None:
    items, mesh = named(smollm2_golden, SOME), mesh_of(3)
    host = bare_host(
        load_model("smollm2-135m", mesh=mesh), page_size=16, total_pages=total_pages(items, 16), max_chunk=128, mesh=mesh
    )
    assert host.pool.heads_split
    check(host.serve([item["ids"] for item in items], NEW_TOKENS), items)
