"""How many slots each host pool gets: a ratio of the device pool, or a share of a number of bytes; never more than there is."""

from collections.abc import Sequence

from kvcache_core.config.model import HiCacheConfig
from kvcache_core.deps import CacheDeps
from kvcache_core.errors import ConfigError
from kvcache_unified_hicache.host_memory import MemoryRoom, memory_rooms, require_host_memory
from kvcache_unified_hicache.host_pool.page_layout import PageLayout

HEADROOM = 10
"""A pool may keep arrays alive for one part in so many beyond its slots before it packs them."""


def host_slots(
    hicache: HiCacheConfig, deps: CacheDeps, names: Sequence[str], rooms: Sequence[MemoryRoom] | None = None
) -> list[int]:
    """By component. `ratio` x device pages for each; `host_bytes` is divided among the components like the device's bytes.
    `rooms`: what limits the process's memory; default: what cgroups, ulimit and the machine say.

    Raises:
        ConfigError: a component would get no slot, or the pools of all the process's caches need more memory than it may use.
    """
    pages = [deps.allocators[name].total for name in names]
    sizes = [PageLayout(deps.pools[name].host_struct()).page_bytes for name in names]
    if hicache.host_bytes is None:
        assert hicache.ratio is not None
        slots = [int(hicache.ratio * n) for n in pages]
    else:
        whole = sum(n * size for n, size in zip(pages, sizes, strict=True))
        slots = [int(hicache.host_bytes * n / whole) for n in pages]
    field = "ratio" if hicache.host_bytes is None else "host_bytes"
    for name, n, size in zip(names, slots, sizes, strict=True):
        if n < 1:
            raise ConfigError(
                f"hicache.{field} leaves no page of {name!r} for L2 (a page takes {size} bytes); raise it, or remove hicache",
                path=("hicache", field),
            )
    need = deps.caches * sum(n * size for n, size in zip(slots, sizes, strict=True))
    require_host_memory(need + need // HEADROOM, ("hicache", field), memory_rooms() if rooms is None else rooms)
    return slots
