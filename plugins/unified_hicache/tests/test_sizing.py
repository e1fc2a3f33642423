"""Slots by ratio and by bytes, and what cannot be."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from kvcache_core.config.model import HiCacheConfig
from kvcache_core.errors import ConfigError
from kvcache_unified_hicache.host_memory import MemoryRoom
from kvcache_unified_hicache.sizing import host_slots


class Pool:
    def __init__(self, n):
        self.n = n

    def host_struct(self):
        sharding = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
        return jax.ShapeDtypeStruct((1, self.n), np.uint8, sharding=sharding)


def deps(caches=1, **pools):
    """By component: (pages on the device, bytes of one)."""
    return SimpleNamespace(
        caches=caches,
        allocators={name: SimpleNamespace(total=pages) for name, (pages, _) in pools.items()},
        pools={name: Pool(size) for name, (_, size) in pools.items()},
    )


PLENTY = [MemoryRoom(2**40, 2**40, "a test")]


def test_a_ratio_counts_pages_of_each_component():
    assert host_slots(HiCacheConfig(ratio=2.5), deps(full=(10, 64), swa=(3, 64)), ["full", "swa"], PLENTY) == [25, 7]


def test_bytes_are_divided_like_the_device():
    host = deps(full=(30, 64), swa=(10, 64))
    assert host_slots(HiCacheConfig(host_bytes=64 * 20), host, ["full", "swa"], PLENTY) == [15, 5]


@pytest.mark.parametrize("hicache", [HiCacheConfig(ratio=0.05), HiCacheConfig(host_bytes=60)])
def test_a_component_without_a_slot_is_refused(hicache):
    with pytest.raises(ConfigError, match=r"leaves no page of 'full'.*64 bytes") as info:
        host_slots(hicache, deps(full=(10, 64)), ["full"], PLENTY)
    assert info.value.path == ("hicache", "ratio" if hicache.host_bytes is None else "host_bytes")


def test_more_than_the_process_may_use_is_refused_with_the_limit():
    rooms = [MemoryRoom(2**20, 2**30, "the cgroup limit memory.max")]
    with pytest.raises(ConfigError, match=r"the cgroup limit memory.max leaves") as info:
        host_slots(HiCacheConfig(ratio=2.0), deps(full=(8192, 128)), ["full"], rooms)
    assert info.value.path == ("hicache", "ratio")


def test_the_caches_of_a_process_have_to_fit_together():
    """Each of two data-parallel ranks alone would pass; a cgroup ends the process when both are full."""
    rooms = [MemoryRoom(3 << 20, 2**30, "the cgroup limit memory.max")]
    hicache = HiCacheConfig(ratio=2.0)
    assert host_slots(hicache, deps(full=(8192, 128)), ["full"], rooms) == [16384]
    with pytest.raises(ConfigError, match=r"the cgroup limit memory\.max leaves"):
        host_slots(hicache, deps(caches=2, full=(8192, 128)), ["full"], rooms)
