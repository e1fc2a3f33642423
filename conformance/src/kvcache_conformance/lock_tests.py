"""Directed tests of receipts: what they cover, that they are used once, and that no stale match becomes one. FAULTS L2, L3."""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE, CacheKit, tokens
from kvcache_core.errors import LockError


class LockTests(CacheKit):
    def test_length_zero_is_always_lockable(self) -> None:
        world = self.world()
        for ids in (tokens(0), tokens(PAGE - 1), tokens(3 * PAGE)):
            held = self.hold(world, ids)
            assert held.length == 0
            world.verify()
            world.unlock(held)
        self.store(world, tokens(PAGE))
        match = world.match(tokens(PAGE))
        self.drain(world)
        assert world.lock(match, 0) is not None

    def test_unlocking_twice_is_an_error_and_releases_nothing(self) -> None:
        world = self.world()
        ids = tokens(3 * PAGE)
        self.store(world, ids)
        first, second = self.hold(world, ids), self.hold(world, ids)
        world.unlock(first)
        with pytest.raises(LockError):
            world.cache.unlock_ref(first.lock)
        world.verify()
        world.unlock(second)
        with pytest.raises(LockError):
            world.cache.unlock_ref(second.lock)
        self.drain(world)

    def test_a_lock_of_another_cache_is_refused(self) -> None:
        here, there = self.world(), self.world()
        for world in (here, there):
            self.store(world, tokens(PAGE))
        mine, foreign = self.hold(here, tokens(PAGE)), self.hold(there, tokens(PAGE))
        with pytest.raises(LockError):
            here.cache.unlock_ref(foreign.lock)
        for world, held in ((here, mine), (there, foreign)):
            world.verify()
            world.unlock(held)
            self.drain(world)

    def test_a_match_of_another_cache_locks_nothing(self) -> None:
        self.needs_reuse()
        here, there = self.world(), self.world()
        self.store(there, tokens(PAGE))
        self.store(here, tokens(PAGE))
        match = there.match(tokens(PAGE))
        try:
            lock = here.cache.lock_ref(match.result)
        except LockError:
            lock = None
        assert lock is None, "it would lock pages of another pool"
        for world in (here, there):
            world.verify()

    def test_every_page_boundary_can_be_locked(self) -> None:
        world = self.world()
        ids = tokens(4 * PAGE)
        self.store(world, ids)
        locks = [self.hold(world, ids, length) for length in range(0, self.kept(len(ids)) + 1, PAGE)]
        world.verify()
        for held in locks:
            world.unlock(held)
            world.verify()
        self.drain(world)

    def test_no_lock_is_longer_than_its_match_or_ends_inside_a_page(self) -> None:
        world = self.world()
        self.store(world, tokens(2 * PAGE))
        match = world.match(tokens(4 * PAGE))
        for length in (1, PAGE + 1, 3 * PAGE, -PAGE):
            with pytest.raises(ValueError, match="lock"):
                world.cache.lock_ref(match.result, length)
        world.verify()
        assert world.cache.reset(), "a refused lock is still held"

    def test_many_locks_are_released_in_any_order(self) -> None:
        world = self.world()
        trunk = tokens(2 * PAGE)
        branches = [np.concatenate([trunk, tokens(2 * PAGE, 100 * i)]) for i in (1, 2, 3)]
        for branch in branches:
            self.store(world, branch)
        locks = [self.hold(world, branch) for branch in branches for _ in range(2)]
        for place in (3, 0, 2, 1, 0, 0):
            world.unlock(locks.pop(place))
            world.evict(next(iter(world.host.geometries)), 1)
            world.verify()
        self.drain(world)

    def test_a_lock_survives_a_branch_inside_it(self) -> None:
        self.needs_reuse()
        world = self.world()
        ids = tokens(4 * PAGE)
        self.store(world, ids)
        held = self.hold(world, ids)
        for cut in (PAGE, 3 * PAGE, 2 * PAGE):
            self.store(world, np.concatenate([ids[:cut], tokens(PAGE, 100 + cut)]))
        for name, allocator in world.host.allocators.items():
            world.evict(name, allocator.total)
        world.verify()
        world.unlock(held)
        self.drain(world)

    def test_a_branch_inside_a_lock_is_locked_and_released_by_itself(self) -> None:
        self.needs_reuse()
        world = self.world()
        ids = tokens(4 * PAGE)
        self.store(world, ids)
        long = self.hold(world, ids)
        short = self.hold(world, ids, 2 * PAGE)
        world.unlock(long)
        for name, allocator in world.host.allocators.items():
            world.evict(name, allocator.total)
        assert world.match(ids).result.device_len == 2 * PAGE
        world.verify()
        world.unlock(short)
        self.drain(world)

    def test_a_match_survives_splits_of_what_it_found(self) -> None:
        world = self.world()
        ids = tokens(4 * PAGE)
        self.store(world, ids)
        match = world.match(ids)
        self.store(world, np.concatenate([ids[:PAGE], tokens(PAGE, 100)]))
        self.store(world, np.concatenate([ids[: 3 * PAGE], tokens(PAGE, 200)]))
        held = world.lock(match)
        assert held is not None, "nothing went since the match"
        world.unlock(held)

    def test_a_stale_match_locks_nothing(self) -> None:
        self.needs_reuse()
        world = self.world()
        ids = tokens(3 * PAGE)
        self.store(world, ids)
        match = world.match(ids)
        world.evict(next(iter(world.host.geometries)), 1)
        assert world.lock(match) is None
        self.drain(world)
        for length in (None, PAGE, 2 * PAGE):
            assert world.lock(match, length) is None
        # The same tokens in other pages: the lock may be refused, and must not deliver the old ones.
        other = self.compute(world, tokens(PAGE, 500))
        self.store(world, ids)
        world.lock(match)
        self.give_up(world, other)
        world.verify()

    def test_a_match_is_stale_after_a_reset(self) -> None:
        self.needs_reuse()
        world = self.world()
        self.store(world, tokens(2 * PAGE))
        match = world.match(tokens(2 * PAGE))
        assert world.reset()
        assert world.lock(match) is None

    def test_a_component_behind_the_request_is_released_early_and_once(self) -> None:
        self.needs_reuse()
        world = self.world()
        early = [name for name, geometry in world.host.geometries.items() if not geometry.prefix_closed]
        if not early:
            pytest.skip("all components are prefix closed")
        ids = tokens(4 * PAGE)
        self.store(world, ids)
        held, other = self.hold(world, ids), self.hold(world, ids)
        for name in early:
            world.unlock(held, name)
            world.verify()
            with pytest.raises(LockError):
                held.lock.segment(name)
            with pytest.raises(LockError):
                world.cache.unlock_ref(held.lock, name)
            world.verify()
        world.unlock(other)
        for name, allocator in world.host.allocators.items():
            world.evict(name, allocator.total)
            world.verify()
        world.unlock(held)
        self.drain(world)

    def test_an_unknown_component_has_no_segment(self) -> None:
        world = self.world()
        held = self.hold(world, tokens(PAGE))
        with pytest.raises(KeyError):
            held.lock.segment("no such component")
