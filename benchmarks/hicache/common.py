"""What the benchmarks of HiCache in the engine share: engines with one model and one set of programs, and results as JSON."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine, load_engine_model
from kvcache_engine.model.loaded import LoadedModel
from kvcache_engine.run import prepare_jax

PAGE = 16
TIER = "unified_radix_cache"


def load(config: EngineConfig) -> LoadedModel:
    """The model, with JAX's persistent compilation cache in place."""
    prepare_jax(config, Path.cwd())
    return load_engine_model(config, Path.cwd())


def build(model: LoadedModel, config: EngineConfig, hicache: HiCacheConfig | None, like: Engine | None = None) -> Engine:
    """The same cache with or without its host tier."""
    return build_engine(CacheConfig(cache_type=TIER, page_size=PAGE, hicache=hicache), config, model, like=like)


def hicache(ratio: float, async_impl: str, host_pool: str, backup_on: str = "insert", store: Path | None = None) -> HiCacheConfig:
    """Settings of L2, and with `store` of an L3 of files there: written when L2 evicts or `persist` is called, read without
    deadline and however short the prefix is."""
    values: dict[str, Any] = {"ratio": ratio, "backup_on": backup_on, "async_impl": async_impl, "host_pool": host_pool}
    if store is None:
        return HiCacheConfig.model_validate({**values, "persist_on": "never"})
    storage = {"kind": "file", "path": str(store.absolute())}
    return HiCacheConfig.model_validate(
        {**values, "storage": storage, "persist_on": "evict", "prefetch_threshold": PAGE, "prefetch_timeout": None}
    )


def median_interval(values: Sequence[float], resamples: int = 2000, level: float = 0.95) -> tuple[float, float, float]:
    """(median, lower, upper): the percentile bootstrap interval of the median, with a fixed seed."""
    data = np.asarray(values, np.float64)
    rng = np.random.default_rng(0)
    medians = np.concatenate(
        [
            np.median(data[rng.integers(0, len(data), (min(100, resamples - start), len(data)))], axis=1)
            for start in range(0, resamples, 100)
        ]
    )
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return float(np.median(data)), float(low), float(high)


def write(out: Path, result: Mapping[str, Any]) -> None:
    """Keep `result` as JSON, with the machine it came from."""
    machine = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "devices": [device.device_kind for device in jax.devices()],
        "jax": jax.__version__,
        "numpy": np.__version__,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine, **result}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")
