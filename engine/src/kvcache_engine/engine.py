"""Puts an engine together: model, pools, allocators, cache from the builder, scheduler. It knows no cache type."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvcache_core.builder import build_kv_cache
from kvcache_core.config.model import CacheConfig
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.pools import Allocator
from kvcache_core.deps import CacheDeps
from kvcache_core.registry.registry import Registry
from kvcache_core.transfer_queue import TransferQueue
from kvcache_engine.config import EngineConfig
from kvcache_engine.executor import ModelExecutor, TokenSampler
from kvcache_engine.kv_manager import KVManager
from kvcache_engine.mesh import make_mesh
from kvcache_engine.model.loaded import LoadedModel, Progress, load_model
from kvcache_engine.pools.page_allocator import PageAllocator
from kvcache_engine.pools.paged_kv_pool import PagedKVPool
from kvcache_engine.pools.pool_set import EnginePools
from kvcache_engine.runner import ModelRunner
from kvcache_engine.sampling import Sampler
from kvcache_engine.scheduler import Limits, Scheduler


@dataclass(frozen=True, slots=True)
class Engine:
    """A working engine. It belongs to the thread that built it; `cache.close()` ends it."""

    model: LoadedModel
    pools: Mapping[str, PagedKVPool]
    pool_set: EnginePools
    cache: BasePrefixCache
    allocators: Mapping[str, Allocator]
    runner: ModelRunner
    scheduler: Scheduler
    executor: ModelExecutor

    @property
    def compile_count(self) -> int:
        """Programs compiled so far; constant once every shape of a workload has been seen."""
        return self.executor.compile_count


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
) -> Engine:
    """Build pools for `model` and the cache that `config` chooses for them. `sampler`: default is `sampling.Sampler`.

    Raises:
        ConfigError, PluginError: from the builder.
        ShardingError: the KV heads do not fit the mesh.
    """
    page_size = config.page_size
    total = -(-engine.device_tokens // page_size)
    pool = PagedKVPool(
        layers=model.config.layers,
        total_pages=total,
        page_size=page_size,
        kv_heads=model.config.kv_heads,
        head_dim=model.config.head_dim,
        mesh=model.mesh,
    )
    pools = {"full": pool}
    allocators: Mapping[str, Allocator] = {"full": PageAllocator(total)}
    queue = TransferQueue(pools)
    pool_set = EnginePools(pools, queue)
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
    context = min(engine.context or model.config.context_length, model.config.context_length)
    limits = Limits(
        context=context, vocab_size=model.config.vocab_size, chunk_tokens=engine.chunk_tokens, max_running=engine.max_running
    )
    runner = ModelRunner(model, pools, page_size, model.mesh, max_chunk=engine.chunk_tokens)
    executor = ModelExecutor(runner, pool_set, Sampler() if sampler is None else sampler)
    scheduler = Scheduler(
        cache,
        KVManager(cache, allocators, page_size, engine.chunk_tokens),
        executor,
        limits,
        model.tokenizer.end_ids,
        model.tokenizer.decode,
    )
    return Engine(model, pools, pool_set, cache, allocators, runner, scheduler, executor)
