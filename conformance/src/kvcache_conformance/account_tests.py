"""Directed tests of accounting, reset and what a cache without tiers answers. FAULTS L1."""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE, CacheKit, tokens
from kvcache_core.contracts.locks import Refused
from kvcache_core.contracts.results import Indices, SizeInfo
from kvcache_core.errors import IntegrityError


class AccountTests(CacheKit):
    def test_every_page_is_counted_once(self) -> None:
        world = self.world()
        ids = tokens(3 * PAGE)
        values = self.compute(world, ids)
        for name in world.host.geometries:
            assert world.cache.size(name) == SizeInfo(13, 0, 0, 0, 3, 16)
        world.insert(ids, values)
        kept = 3 if self.reuses_prefixes else 0
        for name in world.host.geometries:
            assert world.cache.size(name) == SizeInfo(13, kept, 0, 0, 3 - kept, 16)
        locks = [self.hold(world, ids, length) for length in range(0, self.kept(len(ids)) + 1, PAGE)]
        for name in world.host.geometries:
            assert world.cache.size(name) == SizeInfo(13, 0, kept, 0, 3 - kept, 16)
        for held in locks:
            world.unlock(held)
        for name in world.host.geometries:
            assert world.cache.size(name) == SizeInfo(13, kept, 0, 0, 3 - kept, 16)

    def test_an_unknown_component_or_tier_has_no_size(self) -> None:
        world = self.world()
        with pytest.raises(KeyError):
            world.cache.size("no such component")
        if not self.tiers:
            with pytest.raises(KeyError):
                world.cache.size(next(iter(world.host.geometries)), "host")

    def test_the_integrity_check_finds_a_page_without_an_owner(self) -> None:
        world = self.world()
        self.store(world, tokens(2 * PAGE))
        none: dict[str, Indices] = {name: np.empty(0, np.int32) for name in world.host.geometries}
        world.cache.check_integrity()
        world.cache.check_integrity(none)
        for name in world.host.geometries:
            assert world.alloc(name, 1) is not None
            with pytest.raises(IntegrityError):
                world.cache.check_integrity(none)
            none[name] = np.asarray(sorted(world.request_owned[name]), np.int32)
            world.cache.check_integrity(none)

    def test_the_integrity_check_finds_a_page_with_two_owners(self) -> None:
        world = self.world()
        self.store(world, tokens(2 * PAGE))
        for name in world.host.geometries:
            assert world.alloc(name, 2) is not None
        owned = {name: np.asarray(sorted(indices), np.int32) for name, indices in world.request_owned.items()}
        for name, indices in owned.items():
            with pytest.raises(IntegrityError):
                world.cache.check_integrity({**owned, name: indices[[0, 0]]})
            for index in list(world.model.resident(name))[:1]:
                with pytest.raises(IntegrityError):
                    world.cache.check_integrity({**owned, name: np.asarray([indices[0], index], np.int32)})
        world.verify()

    def test_reset_forgets_everything_unless_a_lock_lives(self) -> None:
        world = self.world()
        ids = tokens(3 * PAGE)
        for _ in range(2):
            self.store(world, ids)
            held, empty = self.hold(world, ids), self.hold(world, tokens(0))
            assert not world.reset()
            world.verify()
            world.unlock(held)
            assert not world.reset(), "a lock of length 0 is a lock"
            world.unlock(empty)
            assert world.reset()
            world.verify()
            assert world.match(ids).result == (world.match(ids).result.handle, 0, 0, 0)
            for allocator in world.host.allocators.values():
                assert allocator.n_free == allocator.total

    def test_two_caches_share_nothing(self) -> None:
        one, other = self.world(), self.world()
        ids = tokens(2 * PAGE)
        self.store(one, ids)
        assert other.match(ids).result.matched_len == 0
        other.verify()
        assert one.match(ids).result.device_len == self.kept(len(ids))

    def test_without_tiers_transfers_are_refused_and_polling_is_free(self) -> None:
        if self.tiers:
            pytest.skip("this cache declares tiers")
        world = self.world()
        self.store(world, tokens(2 * PAGE))
        cache = world.cache
        match = cache.match_prefix(tokens(3 * PAGE))
        assert isinstance(cache.load(match), Refused)
        assert isinstance(cache.prefetch(tokens(3 * PAGE)), Refused)
        assert cache.poll() == 0
        report = cache.persist(0.0)
        assert report.stored == 0 and report.message
        world.verify()
        cache.close()
        cache.close()
