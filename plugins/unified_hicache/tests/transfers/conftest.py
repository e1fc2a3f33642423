"""Small device pools of real jax arrays, a gate in front of them, and the real controller over both host pools."""

import threading
import time
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.pools import SKIP, PageArray
from kvcache_core.transfer_queue import TransferQueue
from kvcache_unified_hicache.controller import ControllerParts, HiCacheController
from kvcache_unified_hicache.host_pool.discards import Discards
from kvcache_unified_hicache.host_pool.per_page import PerPagePool
from kvcache_unified_hicache.host_pool.preallocated import PreallocatedPool

SHAPE = (2, 3)


class JaxPool:
    """Pages of uint16 [2, 3]. It writes down which threads dispatch, and fails when `broken`."""

    identity = b"uint16/2x3"

    def __init__(self, total):
        device = SingleDeviceSharding(jax.devices()[0])
        self.host = device.with_memory_kind("pinned_host")
        self.total = total
        self.threads = set()
        self.broken = False
        self._gather = jax.jit(lambda b, i: b.at[i].get(mode="promise_in_bounds"), out_shardings=self.host)
        self._scatter = jax.jit(
            lambda b, i, p: b.at[i].set(jax.device_put(p, jax.memory.Space.Device), mode="drop"),
            out_shardings=device,
            donate_argnums=0,
        )

    def create(self):
        return jnp.zeros((1 + self.total, *SHAPE), jnp.uint16)

    def host_struct(self):
        return jax.ShapeDtypeStruct((1, *SHAPE), jnp.uint16, sharding=self.host)

    def page_arrays(self):
        return (PageArray("units", "uint16", SHAPE),)

    def gather(self, buffers, indices):
        self._noted()
        padded = np.zeros(1 << (len(indices) - 1).bit_length(), np.int32)
        padded[: len(indices)] = indices
        return self._gather(buffers, padded)

    def scatter(self, buffers, indices, pages):
        self._noted()
        padded = np.full(len(pages), 1 + self.total, np.int32)
        padded[: len(indices)] = np.where(indices == SKIP, 1 + self.total, indices)
        return self._scatter(buffers, padded, pages)

    def _noted(self):
        self.threads.add(threading.get_ident())
        if self.broken:
            raise RuntimeError("planted")


class Gate:
    """A PoolSet. `write` is a forward: it takes the buffers, donates them, and gives the new ones."""

    def __init__(self, pools: Mapping[str, JaxPool], queue):
        self._buffers = {name: pool.create() for name, pool in pools.items()}
        self._queue = queue
        self._set = jax.jit(lambda b, i, v: b.at[i].set(v), donate_argnums=0)

    def take(self):
        return self._queue.dispatch(self._buffers)

    def give(self, buffers):
        self._buffers = dict(buffers)

    def idle(self):
        self.give(self.take())

    def write(self, pages, contents, component="full"):
        buffers = dict(self.take())
        buffers[component] = self._set(buffers[component], np.asarray(pages, np.int32), np.asarray(contents, np.uint16))
        self.give(buffers)

    def read(self, pages, component="full"):
        """Without dispatching what is queued."""
        return np.asarray(self._buffers[component])[np.asarray(pages)]


def contents(*numbers):
    """One page of content for each number; 0 is a page that nobody wrote."""
    pattern = np.arange(6, dtype=np.uint16).reshape(SHAPE)
    return np.stack([pattern + np.uint16(100 * n) if n else 0 * pattern for n in numbers])


class Rig:
    def __init__(self, async_impl, pool_type, slots=32, components=("full", "other"), max_bytes=1 << 20, agree=list):
        self.pools = {name: JaxPool(32) for name in components}
        self.queue = TransferQueue(self.pools)
        self.gate = Gate(self.pools, self.queue)
        discards = Discards()
        self.hosts = {name: pool_type(pool.host_struct(), slots, None, discards) for name, pool in self.pools.items()}
        self.evicted = []
        self.counters = CacheCounters()
        self.committed = []
        self.controller = HiCacheController(
            ControllerParts(
                queue=self.queue,
                pool_set=self.gate,
                device_pools=self.pools,
                host_pools=self.hosts,
                evict_callback=lambda component, slots: self.evicted.append((component, slots.tolist())),
                async_impl=async_impl,
                max_bytes_in_flight=max_bytes,
                agree=agree,
                counters=self.counters,
                discards=discards,
            )
        )

    def write(self, slots, pages, name="w", component="full"):
        slots, pages = np.asarray(slots, np.int32), np.asarray(pages, np.int32)
        return self.controller.write(slots, pages, component, lambda ok: self.committed.append((name, ok)))

    def load(self, pages, slots, name="l", component="full"):
        slots, pages = np.asarray(slots, np.int32), np.asarray(pages, np.int32)
        return self.controller.load(pages, slots, component, lambda ok: self.committed.append((name, ok)))

    def slots(self, n, component="full"):
        return self.controller.reserve(component, n).tolist()

    def settle(self, *transfers):
        until = time.monotonic() + 30
        while not all(transfer.done for transfer in transfers):
            assert time.monotonic() < until, "a copy does not end"
            self.gate.idle()
            self.controller.poll()

    def stored(self, *numbers):
        """Slots that hold these contents, each written alone."""
        slots = self.slots(len(numbers))
        for slot, number in zip(slots, numbers, strict=True):
            self.gate.write([1], contents(number))
            self.settle(self.write([slot], [1]))
        self.committed.clear()
        return slots


@pytest.fixture(params=["future", "threadpool"])
def async_impl(request):
    return request.param


@pytest.fixture(params=[PerPagePool, PreallocatedPool], ids=["per_page", "preallocated"])
def pool_type(request):
    return request.param


@pytest.fixture
def make_rig(async_impl, pool_type):
    rigs = []

    def make(**options):
        rigs.append(Rig(async_impl, pool_type, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.controller.close()


@pytest.fixture
def rig(make_rig):
    return make_rig()


@pytest.fixture(scope="session")
def page():
    return contents


@pytest.fixture(params=["per_page", "preallocated"])
def host_pool_name(request):
    return request.param


@pytest.fixture(scope="session")
def jax_pool():
    return JaxPool


@pytest.fixture(scope="session")
def gate_type():
    return Gate
