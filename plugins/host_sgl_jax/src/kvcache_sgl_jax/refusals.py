"""What this adapter cannot serve, and why: said at start, all of it at once, instead of a wrong answer later.

It reads the host's settings by their names and imports nothing of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvcache_core.config.model import CacheConfig
from kvcache_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HostShape:
    """What sgl-jax found out about its model and the pools it made."""

    windows: bool
    recurrent_states: bool
    speculative: bool
    one_buffer_a_layer: bool
    """The device pool is one array a layer and nothing beside: what `KVPages` can move."""


def refuse_what_cannot_be_served(server_args: Any, shape: HostShape, config: CacheConfig) -> None:
    """Raises ConfigError naming everything that stands against starting. `server_args`: sgl-jax's."""
    reasons = [*_of_the_model(shape), *_of_the_server(server_args), *_of_the_config(server_args, shape, config)]
    if reasons:
        raise ConfigError("kvcache cannot serve this sgl-jax:\n" + "\n".join(f"- {reason}" for reason in reasons))


def _of_the_model(shape: HostShape) -> Iterator[str]:
    if shape.windows:
        yield "its model has sliding windows, whose second pool sgl-jax frees by itself; use sgl-jax's own cache"
    if shape.recurrent_states:
        yield "its model has recurrent states, which sgl-jax copies between slots by itself; use sgl-jax's own cache"
    if shape.speculative:
        yield "speculative decoding keys prefixes by pairs of tokens and gives tokens back; start without --speculative-algorithm"


def _of_the_server(args: Any) -> Iterator[str]:
    if args.disaggregation_mode != "null" or args.pd_disaggregation:
        yield "prefill/decode disaggregation fills pools beside the cache; start without its flags"
    if args.multimodal:
        yield "multimodal prompts stand for more than their token ids; two images could share a page"
    if args.nnodes > 1:
        yield "several nodes must agree on what is evicted and loaded, and sgl-jax gives the cache no way to; use one node"
    if args.schedule_policy == "dfs-weight":
        yield "--schedule-policy dfs-weight walks the nodes of sgl-jax's own tree; use fcfs or lpm"
    if args.hicache_storage != "disable":
        yield "--hicache-storage starts sgl-jax's own HiCache; set hicache in kvcache's configuration (--kvcache-hicache-ratio 2)"
    # sgl-jax sets the next two by itself for the flags before: what nobody wrote is no reason.
    if args.enable_unified_radix_tree and args.hicache_storage == "disable":
        yield "--enable-unified-radix-tree chooses a tree of sgl-jax's own; set cache_type: unified_radix_cache instead"
    if args.disable_radix_cache and not args.multimodal:
        yield "--disable-radix-cache chooses a cache of sgl-jax's own; set cache_type: chunk_cache instead"


def _of_the_config(args: Any, shape: HostShape, config: CacheConfig) -> Iterator[str]:
    if config.disaggregation_mode != "null":
        yield f"disaggregation_mode is {config.disaggregation_mode}, and this adapter serves no disaggregation loop; remove it"
    if config.hicache is None:
        return
    if args.enable_return_routed_experts:
        yield "--enable-return-routed-experts keeps expert ids by slot, and L2 puts a page into another slot; remove hicache"
    if config.hicache.storage is not None:
        yield f"hicache.storage is {config.hicache.storage.kind}, and sgl-jax never asks for L3; set storage: none for L1 + L2"
    if not shape.one_buffer_a_layer:
        yield "its device pool is not one array a layer, so pages cannot be copied to L2; remove hicache"
