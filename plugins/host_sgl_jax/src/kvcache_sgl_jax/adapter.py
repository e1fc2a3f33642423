"""sgl-jax's `BasePrefixCache` over caches of ours: names and parameter objects, nothing else.

The one module that imports sgl-jax's classes. What a call does to a request is `RankCache`'s. The attributes without a docstring
are those that sgl-jax's scheduler reads from its own caches.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from sgl_jax.srt.mem_cache.base_prefix_cache import (  # pyright: ignore[reportMissingImports]
    BasePrefixCache,
    EvictResult,
    IncLockRefResult,
    MatchResult,
)

from kvcache_sgl_jax.held_prefix import HeldPrefix
from kvcache_sgl_jax.pool_gate import Barrier
from kvcache_sgl_jax.rank_cache import NO_SLOTS, RankCache


@final
class SglPrefixCache(BasePrefixCache):  # pyright: ignore[reportUntypedBaseClass]
    """`ranks`: by data-parallel rank. `tiers`: there is an L2, so that the scheduler calls the methods of the last part."""

    disable = False

    def __init__(
        self,
        ranks: Sequence[RankCache],
        req_to_token_pool: Any,
        token_to_kv_pool_allocator: Any,
        barrier: Barrier,
        *,
        tiers: bool,
    ) -> None:
        self.ranks = tuple(ranks)
        self.req_to_token_pool = req_to_token_pool
        self.token_to_kv_pool_allocator = token_to_kv_pool_allocator
        self.page_size = token_to_kv_pool_allocator.page_size
        self.hicache_enabled = tiers
        self._barrier = barrier

    @property
    def root_node(self) -> HeldPrefix:
        """Given to a request that is not looked up, such as one that names a room of disaggregation. It is a new one each time,
        since two requests would share its receipts; its rank does not matter, since it holds nothing."""
        return self.ranks[0].root().held

    def reset(self) -> None:
        for rank in self.ranks:
            rank.reset()

    def match_prefix(self, params: Any) -> MatchResult:
        key = params.key
        found = self.ranks[key.dp_rank or 0].match(key.token_ids, key.extra_key)
        return MatchResult(
            device_indices=found.slots,
            last_device_node=found.held,
            last_host_node=found.held,
            best_match_node=found.held,
            host_hit_length=found.host_tokens,
        )

    def cache_finished_req(self, req: Any, is_insert: bool = True, **_unused: Any) -> None:
        self.ranks[req.dp_rank or 0].finish(req, insert=is_insert)

    def cache_unfinished_req(self, req: Any, **_unused: Any) -> None:
        self.ranks[req.dp_rank or 0].offer_chunk(req)

    def evict(self, params: Any) -> EvictResult:
        ranks = self.ranks if params.dp_rank is None else self.ranks[params.dp_rank : params.dp_rank + 1]
        return EvictResult(num_tokens_evicted=sum(rank.evict(params.num_tokens) for rank in ranks))

    def inc_lock_ref(self, node: HeldPrefix) -> IncLockRefResult:
        node.lock()
        return IncLockRefResult()

    def dec_lock_ref(self, node: HeldPrefix, params: Any = None) -> None:
        node.unlock()

    def evictable_size(self, dp_rank: int = 0) -> int:
        return self.ranks[dp_rank].evictable

    def protected_size(self, dp_rank: int = 0) -> int:
        return self.ranks[dp_rank].protected

    def full_evictable_size(self, dp_rank: int = 0) -> int:
        return self.evictable_size(dp_rank)

    def full_protected_size(self, dp_rank: int = 0) -> int:
        return self.protected_size(dp_rank)

    def total_size(self) -> int:
        """Tokens in device memory, over all ranks."""
        return sum(rank.evictable + rank.protected for rank in self.ranks)

    def pretty_print(self) -> None:
        """sgl-jax asks for it when it is out of memory."""
        for number, rank in enumerate(self.ranks):
            print(f"kvcache rank {number}: {rank.cache.size('full')} pages, {rank.cache.counters.as_dict()}")  # noqa: T201

    # With L2 only.

    @property
    def _donation_barrier(self) -> None:
        """Set by the scheduler, when scheduling overlaps."""
        return None

    @_donation_barrier.setter
    def _donation_barrier(self, wait: Callable[[], None]) -> None:
        self._barrier.set(wait)

    def check_hicache_events(self) -> None:
        for rank in self.ranks:
            rank.turn()

    def flush_write_through_acks(self) -> None:
        self.check_hicache_events()

    def init_load_back(
        self, last_host_node: HeldPrefix, host_hit_length: int, mem_quota: int | None = None
    ) -> tuple[np.ndarray, HeldPrefix, list[Any]]:
        """The load is dispatched before this returns, so there is nothing to finish later. `mem_quota` is what is free; it does
        not count, since a load evicts."""
        found = self.ranks[last_host_node.rank].load(last_host_node)
        if found is None:
            return NO_SLOTS, last_host_node, []
        return found.slots, found.held, []

    def finish_load_back(self, flush_plan: list[Any]) -> None:
        assert not flush_plan, "init_load_back leaves nothing to finish"

    def precompile_hicache_transfers(self) -> None:
        """Nothing: the programs are compiled when they are first needed, one for each power of two of pages."""
