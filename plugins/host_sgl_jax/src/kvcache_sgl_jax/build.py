"""Makes the cache that sgl-jax's scheduler asks for: checks, our configuration, one cache of ours for each data-parallel rank.

It takes the place of `sgl_jax.srt.mem_cache.kv_cache_builder.build_kv_cache` and has its signature.
"""

import logging
from typing import Any, final

from kvcache_core.builder import build_kv_cache
from kvcache_core.config.load import LoadedConfig
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.model_spec import ModelSpec
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import ConfigError, KVCacheError
from kvcache_core.transfer_queue import TransferQueue
from kvcache_sgl_jax.adapter import SglPrefixCache
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
            config = self._config(page_size)
            refuse_what_cannot_be_served(server_args, shape, config)
            return self._build(config, server_args, req_to_token_pool, token_to_kv_pool_allocator, pool, mesh)
        except KVCacheError as error:
            raise self._loaded.located(error) from error

    def _config(self, page_size: int) -> CacheConfig:
        """The configuration with the host's page size, which need not be repeated in it. Raises ConfigError if it is, wrongly."""
        config = self._loaded.config
        if self._loaded.sources.gives(("page_size",)) and config.page_size != page_size:
            raise ConfigError(
                f"page_size is {config.page_size}, but sgl-jax was started with --page-size {page_size}; leave it out",
                path=("page_size",),
            )
        return config.model_copy(update={"page_size": page_size})

    def _build(
        self, config: CacheConfig, server_args: Any, req_to_token_pool: Any, allocator: Any, pool: Any, mesh: Any
    ) -> SglPrefixCache:
        model = ModelSpec(
            model_id=server_args.served_model_name or server_args.model_path,
            model_version=server_args.revision or "",
            model_class="full_attention",
        )
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
                mesh=mesh,
            )
            ranks.append(RankCache(build_kv_cache(config, deps), rank, pages, req_to_token_pool, gate))
        log.info("kvcache serves %d data-parallel rank(s), page size %d", len(ranks), config.page_size)
        return SglPrefixCache(ranks, req_to_token_pool, allocator, barrier, tiers=config.hicache is not None)


def _is_one_buffer_a_layer(pool: Any) -> bool:
    # A pool with more arrays a page (an indexer's keys) would come back from L2 with those of another prefix.
    return isinstance(getattr(pool, "kv_buffer", None), list) and not getattr(pool, "num_indexer_layers", 0)
