"""The golden numbers again where the prompt comes from the cache, from L1, L2 or L3: reused pages give what independent code
computed."""

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import build_engine
from kvcache_engine.request import RequestSpec, Sampling

TIERS = {"L1": "device", "L2": "host", "L3": "storage"}


@pytest.fixture(scope="module")
def engines():
    """An engine by model and page size, for whoever comes next: its compiled programs are used again."""
    return {}


def build(engines, model, page_size, tier, root, recorder):
    config = EngineConfig(model="golden", device_tokens=4096, chunk_tokens=64, compilation_cache=None)
    hicache: dict[str, object] = {"ratio": 2.0}
    if tier == "L3":
        storage = {"kind": "file", "path": str(root)}
        hicache |= {"storage": storage, "prefetch_threshold": page_size, "prefetch_timeout": None}
    values = {"cache_type": "radix_cache"} if tier == "L1" else {"cache_type": "unified_radix_cache", "hicache": hicache}
    cache = CacheConfig.model_validate({"page_size": page_size, **values})
    key = (model.model_id, page_size)
    engines[key] = build_engine(cache, config, model, sampler=recorder, like=engines.get(key))
    return engines[key]


def serve_twice(engines, model, page_size, prompts, max_tokens, tier, root):
    """Serve each prompt cold and then again: for L2 after all has left L1, for L3 with nothing in memory, from the second engine
    on one storage. Returns (cold, hit) requests and the logits of their first drawn token."""
    recorder = LogitRecorder()
    engine = build(engines, model, page_size, tier, root, recorder)
    passes = []
    for number in range(2):
        requests = []
        for i, ids in enumerate(prompts):
            if tier == "L2":
                engine.cache.evict("full", engine.cache.size("full").total)
            elif tier == "L3" and number:
                assert engine.cache.reset()
            spec = RequestSpec(str(i), np.asarray(ids, np.int32), max_tokens, Sampling(seed=1000 * number + i))
            requests.append(engine.scheduler.submit(spec))
            while engine.scheduler.busy:
                engine.scheduler.step()
                engine.scheduler.check_integrity()
        passes.append(requests)
        if tier == "L3":
            engine.cache.close()
            engine = build(engines, model, page_size, tier, root, recorder)
    firsts = [recorder.logits[1000 + i, len(ids)][0] for i, ids in enumerate(prompts)]
    engine.cache.close()
    for request in passes[1]:
        by_tier = {"device": request.counts.device, "host": request.counts.host, "storage": request.counts.storage}
        assert by_tier.pop(TIERS[tier]) == (request.n_prompt - 1) // page_size * page_size
        assert not any(by_tier.values())
    assert sum(r.counts.cached for r in passes[1]) > 0
    return passes, firsts


@pytest.mark.real_model
@pytest.mark.parametrize("tier", TIERS)
def test_smollm2(engines, smollm2, smollm2_golden, tier, tmp_path):
    items = smollm2_golden["items"]
    (cold, hit), firsts = serve_twice(engines, smollm2, 16, [item["ids"] for item in items], 24, tier, tmp_path)
    for item, before, after, logits in zip(items, cold, hit, firsts, strict=True):
        end = item["greedy_first_eos_index"]
        want = item["greedy_24"] if end is None else item["greedy_24"][: end + 1]
        assert after.output_ids == before.output_ids == want, item["name"]
        golden = item["positions"][-1]
        assert golden["pos"] == after.n_prompt - 1
        np.testing.assert_allclose(logits[golden["top_ids"]], golden["top_logits"], atol=1e-3, rtol=0)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("tier", TIERS)
def test_tiny_qwen3(engines, qwen3, qwen3_golden, page_size, tier, tmp_path):
    ids = qwen3_golden["ids"].tolist()
    cuts = [len(ids), len(ids) - 1, len(ids) // 2]
    (_, hit), firsts = serve_twice(engines, qwen3, page_size, [ids[:cut] for cut in cuts], 24, tier, tmp_path)
    for cut, logits in zip(cuts, firsts, strict=True):
        np.testing.assert_allclose(logits, qwen3_golden["logits"][cut - 1], atol=2e-4, rtol=0)
    assert hit[0].output_ids == qwen3_golden["greedy"].tolist()
