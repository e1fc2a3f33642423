"""Makes the cache that sgl-jax's scheduler asks for: checks, our configuration, one cache of ours for each data-parallel rank.

It takes the place of `sgl_jax.srt.mem_cache.kv_cache_builder.build_kv_cache` and has its signature.
"""

import logging
from typing import Any, final

from kvcache_core.builder import build_kv_cache
from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.model import CacheConfig
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import KVCacheError
from kvcache_core.transfer_queue import TransferQueue
from kvcache_sgl_jax.adapter import SglPrefixCache
from kvcache_sgl_jax.host_settings import config_for_page_size, model_of
from kvcache_sgl_jax.kv_pages import KVPages
from kvcache_sgl_jax.pool_gate import FULL, Barrier, PoolGate
from kvcache_sgl_jax.rank_allocator import RankAllocator
from kvcache_sgl_jax.rank_cache import RankCache
from kvcache_sgl_jax.refusals import HostShape, refuse_what_cannot_be_served

log = logging.getLogger(__name__)


@final
class CacheBuilder:
    """Called by the scheduler with keywords, once for each pair of pools. `loaded`: from `load_config`."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded = loaded

    def __call__(
        self,
        *,
        server_args: Any,
        req_to_token_pool: Any,
        token_to_kv_pool_allocator: Any,
        page_size: int,
        is_hybrid: bool,
        is_hybrid_recurrent: bool = False,
        spec_algorithm: Any,
        mesh: Any = None,
        **_unused: Any,
    ) -> SglPrefixCache:
        """Raises ConfigError, with its place where a field decided, for what cannot be served; PluginError for missing parts."""
        pool = token_to_kv_pool_allocator.get_kvcache()
        shape = HostShape(
            windows=is_hybrid,
            recurrent_states=is_hybrid_recurrent,
            speculative=spec_algorithm is not None and not spec_algorithm.is_none(),
            one_buffer_a_layer=_is_one_buffer_a_layer(pool),
        )
        try:
            config = config_for_page_size(self._loaded, page_size)
            refuse_what_cannot_be_served(server_args, shape, config)
            return self._build(config, server_args, req_to_token_pool, token_to_kv_pool_allocator, pool, mesh)
        except KVCacheError as error:
            raise self._loaded.located(error) from error

    def _build(
        self, config: CacheConfig, server_args: Any, req_to_token_pool: Any, allocator: Any, pool: Any, mesh: Any
    ) -> SglPrefixCache:
        model = model_of(server_args)
        barrier = Barrier()
        ranks: list[RankCache] = []
        for rank in range(allocator.dp_size):
            pages = RankAllocator(allocator, rank)
            pools = {FULL: KVPages(pool, rank, allocator.dp_size)}
            queue = TransferQueue(pools)
            gate = PoolGate(pool, queue, barrier)
            deps = CacheDeps(
                model=model,
                page_size=config.page_size,
                allocators={FULL: pages},
                pools=pools,
                pool_set=gate,
                queue=queue,
                caches=allocator.dp_size,
                mesh=mesh,
            )
            ranks.append(RankCache(build_kv_cache(config, deps), rank, pages, req_to_token_pool, gate))
        log.info("kvcache serves %d data-parallel rank(s), page size %d", len(ranks), config.page_size)
        return SglPrefixCache(ranks, req_to_token_pool, allocator, barrier, tiers=config.hicache is not None)


def _is_one_buffer_a_layer(pool: Any) -> bool:
    # A pool with more arrays a page (an indexer's keys) would come back from L2 with those of another prefix.
    return isinstance(getattr(pool, "kv_buffer", None), list) and not getattr(pool, "num_indexer_layers", 0)
