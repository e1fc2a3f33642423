"""What the groups of directed tests share: the cache under test, its surroundings, and data computed outside of it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from kvcache_conformance.checked_cache import CheckedCache
from kvcache_conformance.claims import Held
from kvcache_conformance.geometries import FULL
from kvcache_conformance.host_model import HostModel
from kvcache_conformance.reference_model import TOKEN_BYTES
from kvcache_core.contracts.cache import BasePrefixCache
from kvcache_core.contracts.model_spec import ComponentSpec
from kvcache_core.contracts.results import NO_INDICES, Segment, Values
from kvcache_core.contracts.tokens import ExtraKey, floor_page

Tokens = npt.NDArray[np.int32]

PAGE = 4
"""Tokens in a page, where a test does not choose."""


def tokens(n: int, first: int = 1) -> Tokens:
    """`n` different tokens."""
    return np.arange(first, first + n, dtype=np.int32)


class CacheKit(ABC):
    """Subclass `BasePrefixCacheTests`, not this. Switches:

    `components`: what the host's model has, as many as the cache serves. `reuses_prefixes`: False for a cache that keeps nothing.
    `lru`: the eviction order is that of the contract. `tiers`: it has more than device memory.
    """

    components: ClassVar[Sequence[ComponentSpec]] = (FULL,)
    reuses_prefixes: ClassVar[bool] = True
    lru: ClassVar[bool] = True
    tiers: ClassVar[bool] = False

    @abstractmethod
    def make_cache(self, host: HostModel) -> BasePrefixCache:
        """A new cache on the allocators and pools of `host`."""

    def world(self, page_size: int = PAGE, total: int = 16) -> CheckedCache:
        """A new cache whose every call is checked, with pools of `total` pages and as many states."""
        host = HostModel(page_size, self.components, total)
        return CheckedCache(self.make_cache(host), host, reuses_prefixes=self.reuses_prefixes, lru=self.lru)

    def kept(self, length: int, page_size: int = PAGE) -> int:
        """How much of `length` inserted tokens is expected to be found again."""
        return floor_page(length, page_size) if self.reuses_prefixes else 0

    def compute(
        self, world: CheckedCache, ids: Tokens, extra_key: ExtraKey = (), start: int = 0, states: Sequence[int] | None = None
    ) -> Values:
        """What a request offers that computed the tokens from `start` on: pages of every component, and a state after each of
        them, or only at the positions `states`."""
        page, values = world.host.page_size, dict[str, list[Segment]]()
        pages = range(start + page, len(ids) + 1, page)
        for name, geometry in world.host.geometries.items():
            ends = states if geometry.at_node_end and states is not None else pages
            indices = world.alloc(name, len(ends))
            assert indices is not None, "the test's pools are too small"
            for index, end in zip(indices.tolist(), ends, strict=True):
                world.write(name, index, extra_key, ids.tobytes()[: end * TOKEN_BYTES])
            if geometry.at_node_end:
                values[name] = [Segment(end - page, end, indices[i : i + 1]) for i, end in enumerate(ends)]
            else:
                values[name] = [Segment(start, ends[-1], indices)] if ends else []
        return values

    def give_up(self, world: CheckedCache, values: Values) -> None:
        """The request frees what it still owns of `values`."""
        for name, segments in values.items():
            indices = np.concatenate([NO_INDICES, *(segment.indices for segment in segments)])
            mine = [index for index in indices.tolist() if index in world.request_owned[name]]
            world.free(name, np.asarray(mine, np.int32))

    def store(self, world: CheckedCache, ids: Tokens, extra_key: ExtraKey = (), states: Sequence[int] | None = None) -> int:
        """Compute and insert all of `ids`, free what comes back. Returns the length usable afterwards."""
        values = self.compute(world, ids, extra_key, states=states)
        length = world.insert(ids, values, extra_key).length
        self.give_up(world, values)
        world.verify()
        return length

    def hold(self, world: CheckedCache, ids: Tokens, length: int | None = None, extra_key: ExtraKey = ()) -> Held:
        """Match and lock, which must succeed."""
        held = world.lock(world.match(ids, extra_key), length)
        assert held is not None
        return held

    def drain(self, world: CheckedCache) -> None:
        """Evict everything: with no lock and no request left, every pool is free again."""
        assert not world.held, "the test still holds locks"
        for name, allocator in world.host.allocators.items():
            world.evict(name, allocator.total)
            assert allocator.n_free + len(world.request_owned[name]) == allocator.total
        world.verify()

    def needs_reuse(self) -> None:
        """For tests of what was kept."""
        if not self.reuses_prefixes:
            pytest.skip("this cache declares that it keeps nothing")
