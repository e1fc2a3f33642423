"""The golden numbers again where the prompt comes from the cache, from L1 or from L2: reused pages give what independent code
computed."""

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder
from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import build_engine
from kvcache_engine.request import RequestSpec, Sampling

HOST = HiCacheConfig(ratio=2.0)


@pytest.fixture(scope="module")
def engines():
    """An engine by model and page size, for whoever comes next: its compiled programs are used again."""
    return {}


def serve_twice(engines, model, page_size, prompts, max_tokens, hicache=None):
    """Serve each prompt cold and then again, with `hicache` after all has left L1; returns (cold, hit) requests and the logits of
    their first drawn token."""
    recorder = LogitRecorder()
    config = EngineConfig(model="golden", device_tokens=4096, chunk_tokens=64, compilation_cache=None)
    cache_type = "radix_cache" if hicache is None else "unified_radix_cache"
    cache = CacheConfig(cache_type=cache_type, page_size=page_size, hicache=hicache)
    key = (model.model_id, page_size)
    engine = engines[key] = build_engine(cache, config, model, sampler=recorder, like=engines.get(key))
    passes = []
    for number in range(2):
        requests = []
        for i, ids in enumerate(prompts):
            if hicache is not None:
                engine.cache.evict("full", engine.cache.size("full").total)
            spec = RequestSpec(str(i), np.asarray(ids, np.int32), max_tokens, Sampling(seed=1000 * number + i))
            requests.append(engine.scheduler.submit(spec))
            while engine.scheduler.busy:
                engine.scheduler.step()
                engine.scheduler.check_integrity()
        passes.append(requests)
    firsts = [recorder.logits[1000 + i, len(ids)][0] for i, ids in enumerate(prompts)]
    engine.cache.close()
    for request in passes[1]:
        counts = request.counts
        hit, other = (counts.device, counts.host) if hicache is None else (counts.host, counts.device)
        assert hit == (request.n_prompt - 1) // page_size * page_size
        assert other == 0
    assert sum(r.counts.cached for r in passes[1]) > 0
    return passes, firsts


@pytest.mark.real_model
@pytest.mark.parametrize("hicache", [None, HOST], ids=["L1", "L2"])
def test_smollm2(engines, smollm2, smollm2_golden, hicache):
    items = smollm2_golden["items"]
    (cold, hit), firsts = serve_twice(engines, smollm2, 16, [item["ids"] for item in items], 24, hicache)
    for item, before, after, logits in zip(items, cold, hit, firsts, strict=True):
        end = item["greedy_first_eos_index"]
        want = item["greedy_24"] if end is None else item["greedy_24"][: end + 1]
        assert after.output_ids == before.output_ids == want, item["name"]
        golden = item["positions"][-1]
        assert golden["pos"] == after.n_prompt - 1
        np.testing.assert_allclose(logits[golden["top_ids"]], golden["top_logits"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("hicache", [None, HOST], ids=["L1", "L2"])
def test_tiny_qwen3(engines, qwen3, qwen3_golden, page_size, hicache):
    ids = qwen3_golden["ids"].tolist()
    cuts = [len(ids), len(ids) - 1, len(ids) // 2]
    (_, hit), firsts = serve_twice(engines, qwen3, page_size, [ids[:cut] for cut in cuts], 24, hicache)
    for cut, logits in zip(cuts, firsts, strict=True):
        np.testing.assert_allclose(logits, qwen3_golden["logits"][cut - 1], atol=2e-4, rtol=0)
    assert hit[0].output_ids == qwen3_golden["greedy"].tolist()
