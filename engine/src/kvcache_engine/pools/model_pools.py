"""The pools that a model needs, one for each of its components. It decides no sizes."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from kvcache_engine.model.config import ModelConfig
from kvcache_engine.pools.engine_pool import EnginePool
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_engine.pools.recurrent_pool import RecurrentPool


def model_pools(
    config: ModelConfig,
    page_size: int,
    totals: Mapping[str, int],
    mesh: Mesh | None = None,
    dtype: npt.DTypeLike = np.float32,
) -> dict[str, EnginePool]:
    """`totals`: pages, or slots of states, by component. `dtype`: of keys and values; states are float32.

    Raises:
        ValueError: a total is missing or not positive, or pools cannot store `dtype`.
        ShardingError: the kv heads cannot be laid out on the mesh.
    """
    if set(totals) != set(config.components):
        raise ValueError(f"this model has the components {list(config.components)}; sizes are given for {sorted(totals)}")
    pools: dict[str, EnginePool] = {}
    for name, mixer in config.page_mixers().items():
        (_, heads, key_dim), (_, _, value_dim) = mixer.unit_shapes(page_size)
        numbers = config.layers_of(name)
        pools[name] = PagedKVPool(
            layers=len(numbers),
            layer_numbers=numbers,
            total_pages=totals[name],
            page_size=page_size,
            kv_heads=heads,
            head_dim=key_dim,
            value_dim=value_dim,
            dtype=dtype,
            mesh=mesh,
        )
    for name, mixer in config.state_mixers().items():
        conv, state = mixer.unit_shapes(page_size)
        pools[name] = RecurrentPool(
            layer_numbers=config.layers_of(name), total_pages=totals[name], conv_shape=conv, state_shape=state, mesh=mesh
        )
    return pools
