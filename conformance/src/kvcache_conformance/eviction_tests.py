"""Directed tests of eviction: how much, what never, and in which order. FAULTS L9, P1, P2, P6."""

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE, CacheKit, Tokens, tokens
from kvcache_conformance.checked_cache import CheckedCache


class EvictionTests(CacheKit):
    def test_exactly_what_is_asked_is_freed(self) -> None:
        for n in range(8):
            world = self.world()
            for first in (100, 200):
                self.store(world, tokens(3 * PAGE, first))
            for name in world.host.geometries:
                there = len(world.model.resident(name))
                assert world.evict(name, n) == min(n, there)
                world.verify()
            self.drain(world)

    def test_the_last_victim_is_trimmed_at_a_page_boundary(self) -> None:
        self.needs_reuse()
        world = self.world()
        ids = tokens(5 * PAGE)
        self.store(world, ids)
        name = next(iter(world.host.geometries))
        for left in (4, 2, 1):
            world.evict(name, len(world.model.resident(name)) - left)
            assert len(world.model.resident(name)) == left
            world.verify()

    def test_nothing_and_less_than_nothing_can_be_asked(self) -> None:
        world = self.world()
        self.store(world, tokens(2 * PAGE))
        for name in world.host.geometries:
            assert world.evict(name, 0) == 0
            assert world.evict(name, -1) == 0
        assert world.match(tokens(2 * PAGE)).result.device_len == self.kept(2 * PAGE)

    def test_an_unknown_component_or_tier_is_named(self) -> None:
        world = self.world()
        with pytest.raises(KeyError):
            world.cache.evict("no such component", 1)
        if not self.tiers:
            with pytest.raises(KeyError):
                world.cache.evict(next(iter(world.host.geometries)), 1, "host")

    def test_locked_pages_stay_and_the_rest_goes(self) -> None:
        world = self.world()
        trunk = tokens(2 * PAGE)
        branches = [np.concatenate([trunk, tokens(2 * PAGE, first)]) for first in (100, 200)]
        for branch in branches:
            self.store(world, branch)
        held = self.hold(world, branches[0])
        for name, allocator in world.host.allocators.items():
            world.evict(name, allocator.total)
            world.verify()
        assert world.match(branches[0]).result.device_len == held.length
        world.unlock(held)
        self.drain(world)

    def test_what_lies_before_a_locked_window_is_evicted(self) -> None:
        """The window of the lock lies in the tail of what was split; nobody has used the head since it was cut off."""
        world = self.world(total=24)
        ids = tokens(6 * PAGE)
        self.store(world, ids, states=[6 * PAGE])
        self.store(world, ids[: 3 * PAGE], states=[3 * PAGE])
        self.store(world, np.concatenate([ids[: 2 * PAGE], tokens(PAGE, 100)]), states=[3 * PAGE])
        held = self.hold(world, ids)
        for name, allocator in world.host.allocators.items():
            world.evict(name, allocator.total)
            world.verify()
        assert world.match(ids).result.device_len == held.length
        world.unlock(held)
        self.drain(world)

    def test_with_everything_pinned_eviction_ends_and_frees_nothing(self) -> None:
        self.needs_reuse()
        world = self.world(total=6)
        prompts = [tokens(3 * PAGE, first) for first in (100, 200)]
        for ids in prompts:
            self.store(world, ids)
        # Every boundary, so that of each component every page is needed by some lock.
        locks = [self.hold(world, ids, length) for ids in prompts for length in range(PAGE, 3 * PAGE + 1, PAGE)]
        for name, allocator in world.host.allocators.items():
            assert world.evict(name, 10**9) == 0
            assert allocator.alloc(1) is None
        for held in locks:
            world.unlock(held)
        self.drain(world)

    def test_evicted_pages_are_given_to_others(self) -> None:
        world = self.world(total=4)
        for first in range(100, 1100, 100):
            ids = tokens(4 * PAGE, first)
            for name in world.host.geometries:
                world.evict(name, 4 - world.host.allocators[name].n_free)
            self.store(world, ids)
            assert world.match(ids).result.device_len == self.kept(len(ids))

    def _three_prompts(self, world: CheckedCache) -> list[Tokens]:
        prompts = [tokens(2 * PAGE, first) for first in (100, 200, 300)]
        for ids in prompts:
            self.store(world, ids)
        return prompts

    def _expect_order(self, world: CheckedCache, prompts: list[Tokens]) -> None:
        """Evict page by page: the prompts must go in this order, each from its end."""
        name = next(iter(world.host.geometries))
        for place, ids in enumerate(prompts):
            while world.match(ids).result.device_len:
                assert world.evict(name, 1) == 1
                assert all(world.match(later).result.device_len == len(later) for later in prompts[place + 1 :])
        world.verify()

    def test_the_least_recently_inserted_goes_first(self) -> None:
        self.needs_reuse()
        world = self.world()
        self._expect_order(world, self._three_prompts(world))

    def test_a_lock_refreshes(self) -> None:
        self.needs_reuse()
        world = self.world()
        a, b, c = self._three_prompts(world)
        world.unlock(self.hold(world, a))
        self._expect_order(world, [b, c, a])

    def test_an_insert_refreshes(self) -> None:
        self.needs_reuse()
        world = self.world()
        a, b, c = self._three_prompts(world)
        world.insert(b, {})
        self._expect_order(world, [a, c, b])

    def test_a_match_does_not_refresh(self) -> None:
        self.needs_reuse()
        world = self.world()
        a, b, c = self._three_prompts(world)
        for _ in range(3):
            world.match(a)
        self._expect_order(world, [a, b, c])

    def test_a_branch_does_not_refresh_what_it_leaves(self) -> None:
        self.needs_reuse()
        world = self.world()
        old, middle = tokens(4 * PAGE, 100), tokens(2 * PAGE, 200)
        self.store(world, old)
        self.store(world, middle)
        self.store(world, np.concatenate([old[: 2 * PAGE], tokens(PAGE, 300)]))
        name = next(iter(world.host.geometries))
        world.evict(name, 2)
        assert world.match(middle).result.device_len == len(middle)
        assert world.match(old).result.device_len == 2 * PAGE

    def test_a_shorter_lock_does_not_refresh_the_rest(self) -> None:
        self.needs_reuse()
        world = self.world()
        old, middle = tokens(4 * PAGE, 100), tokens(2 * PAGE, 200)
        self.store(world, old)
        self.store(world, middle)
        world.unlock(self.hold(world, old, 2 * PAGE))
        world.evict(next(iter(world.host.geometries)), 2)
        assert world.match(middle).result.device_len == len(middle)
        assert world.match(old).result.device_len == 2 * PAGE

    def test_the_order_equals_a_plain_simulators_on_random_work(self) -> None:
        """Compared after every eviction by CheckedCache."""
        for seed in range(8):
            random = np.random.default_rng(seed)
            world = self.world(page_size=2, total=24)
            known = [tokens(0)]
            for _ in range(60):
                base = known[random.integers(len(known))]
                more = random.integers(0, 3, random.integers(1, 9), np.int32)
                ids = np.concatenate([base[: random.integers(len(base) + 1)], more])
                ids = ids[: min(len(ids) - len(ids) % 2, 20)]
                for name, allocator in world.host.allocators.items():
                    world.evict(name, max(len(ids) // 2 - allocator.n_free, int(random.integers(3))))
                self.store(world, ids)
                known.append(ids)
                other = known[random.integers(len(known))]
                match = world.match(other)
                # Where a window or a state is missing in the middle, the shorter prefix is not usable, and None is right.
                held = world.lock(match, match.result.device_len // 4 * 2 if random.integers(2) else None)
                if held is not None:
                    world.unlock(held)
            self.drain(world)
