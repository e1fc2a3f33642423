"""The golden numbers again where the prompt comes from the cache: reused pages give what independent code computed."""

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import build_engine
from kvcache_engine.request import RequestSpec, Sampling


def serve_twice(model, page_size, prompts, max_tokens):
    """Serve each prompt cold and then again; returns (cold, hit) requests and the logits of their first drawn token."""
    recorder = LogitRecorder()
    config = EngineConfig(model="golden", device_tokens=4096, chunk_tokens=64, compilation_cache=None)
    engine = build_engine(CacheConfig(cache_type="radix_cache", page_size=page_size), config, model, sampler=recorder)
    passes = []
    for number in range(2):
        requests = []
        for i, ids in enumerate(prompts):
            spec = RequestSpec(str(i), np.asarray(ids, np.int32), max_tokens, Sampling(seed=1000 * number + i))
            requests.append(engine.scheduler.submit(spec))
            while engine.scheduler.busy:
                engine.scheduler.step()
                engine.scheduler.check_integrity()
        passes.append(requests)
    firsts = [recorder.logits[1000 + i, len(ids)][0] for i, ids in enumerate(prompts)]
    for request in passes[1]:
        assert request.counts.device == (request.n_prompt - 1) // page_size * page_size
    assert sum(r.counts.device for r in passes[1]) > 0
    return passes, firsts


@pytest.mark.real_model
def test_smollm2(smollm2, smollm2_golden):
    items = smollm2_golden["items"]
    (cold, hit), firsts = serve_twice(smollm2, 16, [item["ids"] for item in items], 24)
    for item, before, after, logits in zip(items, cold, hit, firsts, strict=True):
        end = item["greedy_first_eos_index"]
        want = item["greedy_24"] if end is None else item["greedy_24"][: end + 1]
        assert after.output_ids == before.output_ids == want, item["name"]
        golden = item["positions"][-1]
        assert golden["pos"] == after.n_prompt - 1
        np.testing.assert_allclose(logits[golden["top_ids"]], golden["top_logits"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("page_size", [1, 16])
def test_tiny_qwen3(qwen3, qwen3_golden, page_size):
    ids = qwen3_golden["ids"].tolist()
    cuts = [len(ids), len(ids) - 1, len(ids) // 2]
    (_, hit), firsts = serve_twice(qwen3, page_size, [ids[:cut] for cut in cuts], 24)
    for cut, logits in zip(cuts, firsts, strict=True):
        np.testing.assert_allclose(logits, qwen3_golden["logits"][cut - 1], atol=2e-4, rtol=0)
    assert hit[0].output_ids == qwen3_golden["greedy"].tolist()
