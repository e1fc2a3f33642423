"""Puts an engine together: model, pools, allocators, cache from the builder, scheduler. It knows no cache type."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax

from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig
from kvcache_core.config.resolve import Resolution, resolve
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.pools import Allocator
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import ConfigError
from kvcache_core.registry.default import default_registry
from kvcache_core.registry.registry import Registry
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.component import component_of
from kvcache_engine.config import EngineConfig
from kvcache_engine.endings import Endings
from kvcache_engine.executor import ModelExecutor, TokenSampler
from kvcache_engine.kv_manager import KVManager
from kvcache_engine.limits import Limits
from kvcache_engine.mesh import make_mesh
from kvcache_engine.model.loaded import LoadedModel, Progress, load_model
from kvcache_engine.pools.engine_pool import EnginePool
from kvcache_engine.pools.model_pools import model_pools
from kvcache_engine.pools.page_allocator import PageAllocator
from kvcache_engine.pools.pool_set import EnginePools
from kvcache_engine.pools.pool_sizes import pool_totals, snapshot_positions
from kvcache_engine.runner import ModelRunner
from kvcache_engine.sampling import Sampler
from kvcache_engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Engine:
    """A working engine. It belongs to the thread that built it; `cache.close()` ends it."""

    model: LoadedModel
    resolution: Resolution
    pools: Mapping[str, EnginePool]
    pool_set: EnginePools
    cache: BasePrefixCache
    allocators: Mapping[str, Allocator]
    runner: ModelRunner
    sampler: TokenSampler
    scheduler: Scheduler
    executor: ModelExecutor

    @property
    def compile_count(self) -> int:
        """Programs compiled so far; constant once every shape of a workload has been seen."""
        return self.executor.compile_count

    @property
    def page_bytes(self) -> dict[str, int]:
        """Bytes of one page of each component, over all layers."""
        return {name: pool.bytes_per_page for name, pool in self.pools.items()}


def load_engine_model(engine: EngineConfig, folder: Path, progress: Progress | None = None) -> LoadedModel:
    """Load the model that `engine` names; a path is looked for in `folder`, the configuration file's, first.

    Raises:
        EngineError: no such model, a file that is broken or unsupported, or devices that do not fit.
    """
    local = folder / Path(engine.model).expanduser()
    source = local if local.exists() else engine.model
    return load_model(source, progress, make_mesh(engine.tensor))


def build_engine(
    config: CacheConfig,
    engine: EngineConfig,
    model: LoadedModel,
    registry: Registry | None = None,
    sampler: TokenSampler | None = None,
    like: Engine | None = None,
) -> Engine:
    """Build pools for `model` and the cache that `config` chooses for them. `sampler`: default is `sampling.Sampler`.

    `like`: an engine for the same model, page size and `engine` section, whose compiled programs are used again; it shares no
    memory with the new one, but the totals of its runner and sampler go on.

    Raises:
        ConfigError, PluginError: from the builder.
        ShardingError: the KV heads do not fit the mesh.
    """
    registry = default_registry() if registry is None else registry
    resolution = resolve(config, model.spec, registry)
    context = engine.context or model.config.context_length
    if context > model.config.context_length:
        raise ConfigError(
            f"{context} tokens are more than the model's context, which holds {model.config.context_length}",
            path=("engine", "context"),
        )
    page_size = config.page_size
    totals = pool_totals(model.config, engine, page_size)
    pools = model_pools(model.config, page_size, totals, model.mesh) if like is None else like.pools
    queue = TransferQueue(pools)
    pool_set = _pool_set(pools, queue, engine.device_tokens)
    allocators: Mapping[str, Allocator] = {name: PageAllocator(total) for name, total in totals.items()}
    # One process owns all devices of the mesh, so it is rank 0 of 1 whatever the mesh's size.
    deps = CacheDeps(
        model=model.spec,
        page_size=page_size,
        allocators=allocators,
        pools=pools,
        pool_set=pool_set,
        queue=queue,
        mesh=model.mesh,
    )
    cache = build_kv_cache(config, deps, registry)
    limits = Limits(
        context=context, vocab_size=model.config.vocab_size, chunk_tokens=engine.chunk_tokens, max_running=engine.max_running
    )
    if like is None:
        runner = ModelRunner(model, pools, page_size, model.mesh, max_chunk=engine.chunk_tokens, max_batch=engine.max_running)
        sampler = Sampler(engine.max_running) if sampler is None else sampler
    else:
        runner, sampler = like.runner, like.sampler if sampler is None else sampler
    executor = ModelExecutor(runner, pool_set, sampler)
    scheduler = Scheduler(
        cache,
        KVManager(
            cache,
            allocators,
            page_size,
            engine.chunk_tokens,
            [component_of(spec) for spec in model.spec.components],
            snapshot_positions(model.config, engine, page_size),
        ),
        executor,
        limits,
        Endings(model.tokenizer.end_ids, model.tokenizer.decode, context),
        fetch_timeout=None if resolution.config.hicache is None else resolution.config.hicache.prefetch_timeout,
        agree=deps.agree,
    )
    return Engine(model, resolution, pools, pool_set, cache, allocators, runner, sampler, scheduler, executor)


def _pool_set(pools: Mapping[str, EnginePool], queue: TransferQueue, device_tokens: int) -> EnginePools:
    needed = sum(pool.bytes_per_page * (1 + pool.total_pages) for pool in pools.values())
    too_large = ConfigError(
        f"{device_tokens} tokens need {needed / 2**30:.1f} GiB of device memory, more than there is; lower it",
        path=("engine", "device_tokens"),
    )
    # Some systems grant any amount of memory and end the process later, so what is plainly too much is not even asked for.
    if needed > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise too_large
    try:
        return EnginePools(pools, queue)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        raise too_large from error
