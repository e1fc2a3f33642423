"""How large each pool of a model is, and how far its snapshots lie apart, from the `engine` section. It makes no pool."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvcache_engine.config import EngineConfig
from kvcache_engine.model.config import ModelConfig
from kvcache_engine.model.mixer import Mixer
from kvcache_engine.snapshots import SnapshotPositions, interval_of_pages, usual_interval

STATE_SHARE = 4
"""Unless told otherwise, states take one byte for so many bytes of pages."""
STATES_A_REQUEST = 4
"""At least so many slots for every running request: one that is read, one that is written, a snapshot, and one to spare."""


def pool_totals(config: ModelConfig, engine: EngineConfig, page_size: int) -> dict[str, int]:
    """Pages, or slots of states, by component."""
    totals: dict[str, int] = {}
    for name, mixer in config.page_mixers().items():
        windowed = None if mixer.reach() is None else engine.window_tokens
        tokens = engine.device_tokens if windowed is None else windowed
        totals[name] = -(-tokens // page_size)
    units = unit_bytes(config, page_size)
    page_bytes = sum(total * units[name] for name, total in totals.items())
    for name in config.state_mixers():
        share = page_bytes // (STATE_SHARE * units[name])
        totals[name] = engine.device_states or max(share, STATES_A_REQUEST * engine.max_running)
    return totals


def snapshot_positions(config: ModelConfig, engine: EngineConfig, page_size: int) -> SnapshotPositions:
    """None of them for a model without states."""
    states, units = config.state_mixers(), unit_bytes(config, page_size)
    if not states:
        return SnapshotPositions(page_size)
    if engine.snapshot_interval is not None:
        return SnapshotPositions(page_size, interval_of_pages(engine.snapshot_interval, page_size))
    state_bytes = sum(units[name] for name in states)
    token_bytes = sum(units[name] for name in config.page_mixers()) // page_size
    return SnapshotPositions(page_size, usual_interval(page_size, state_bytes, token_bytes))


def unit_bytes(config: ModelConfig, page_size: int) -> Mapping[str, int]:
    """Bytes of one page, or of one state, over all layers, by component; in float32."""
    mixers: dict[str, Mixer[Any]] = {**config.page_mixers(), **config.state_mixers()}
    sizes = {name: sum(math.prod(shape) for shape in mixer.unit_shapes(page_size)) for name, mixer in mixers.items()}
    return {name: len(config.layers_of(name)) * size * np.dtype(np.float32).itemsize for name, size in sizes.items()}
