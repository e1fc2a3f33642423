"""Directed tests of what a prefix is: tokens, page boundaries and extra keys. FAULTS K1, K2 and K4 in memory, L4."""

from array import array

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE, CacheKit, tokens

LOOKALIKES = ((), (b"",), (b"", b""), (b"a", b"bc"), (b"ab", b"c"), (b"abc",), (b"a", b"b", b"c"), (b"a,b", b"c"), (b"a\0bc",))
"""Extra keys whose parts, joined in some way, look alike."""


class KeyTests(CacheKit):
    def test_whole_pages_of_a_prefix_are_found(self) -> None:
        world = self.world()
        ids = tokens(3 * PAGE)
        self.store(world, ids)
        for length in range(len(ids) + 1):
            assert world.match(ids[:length]).result.device_len == self.kept(length)
        assert world.match(tokens(5 * PAGE)).result.device_len == self.kept(len(ids))

    def test_every_token_counts(self) -> None:
        world = self.world()
        ids = tokens(3 * PAGE)
        self.store(world, ids)
        for place in range(len(ids)):
            other = ids.copy()
            other[place] += 100
            assert world.match(other).result.device_len == self.kept(place)

    def test_branches_of_one_prefix_are_told_apart(self) -> None:
        world = self.world()
        trunk, middle, end = tokens(PAGE), tokens(PAGE, 50), tokens(PAGE, 70)
        other = middle.copy()
        other[-1] += 1
        branches = [np.concatenate([trunk, middle, end]), np.concatenate([trunk, other, end]), np.concatenate([trunk, end])]
        for branch in branches:
            self.store(world, branch)
        for branch in branches:
            assert world.match(branch).result.device_len == self.kept(len(branch))
            world.unlock(self.hold(world, branch))

    def test_every_way_of_chunking_gives_the_same_prefix(self) -> None:
        """FAULTS K4: what is known by whole prompts is known by chunks, and the other way round."""
        ids = tokens(4 * PAGE)
        for chunks in ((4,), (1, 1, 1, 1), (2, 2), (1, 3), (3, 1)):
            for others in ((4,), (1, 1, 2), (3, 1)):
                world = self.world()
                for pages in (chunks, others):
                    for end in np.cumsum(pages).tolist():
                        self.store(world, ids[: end * PAGE])
                assert world.match(ids).result.device_len == self.kept(len(ids))
                for name in world.host.geometries:
                    assert len(world.model.resident(name)) <= len(ids) // PAGE
                self.drain(world)

    def test_extra_keys_are_framed_and_never_share(self) -> None:
        world = self.world(total=2 * len(LOOKALIKES))
        ids = tokens(2 * PAGE)
        for i, extra_key in enumerate(LOOKALIKES):
            self.store(world, ids, extra_key)
            for j, other in enumerate(LOOKALIKES):
                assert world.match(ids, other).result.device_len == (self.kept(len(ids)) if j <= i else 0)
        for extra_key in LOOKALIKES:
            world.unlock(self.hold(world, ids, extra_key=extra_key))
        self.drain(world)

    def test_the_last_prefix_of_an_extra_key_leaves_nothing_behind(self) -> None:
        world = self.world()
        for salt in range(20):
            self.store(world, tokens(2 * PAGE), (b"salt", bytes([salt])))
            self.drain(world)

    def test_token_ids_that_are_not_int32_arrays_are_refused(self) -> None:
        world = self.world()
        self.store(world, np.asarray([5, 0, 7, 0], np.int32))
        cache = world.cache
        for close in ([5, 0, 7, 0], (5, 0, 7, 0), array("q", [5, 7, 5, 7]), np.asarray([5, 7, 5, 7]), np.ones(4, np.uint32)):
            with pytest.raises(TypeError):
                cache.match_prefix(close)  # pyright: ignore[reportArgumentType]
            with pytest.raises(TypeError):
                cache.insert(close, {})  # pyright: ignore[reportArgumentType]
        world.verify()

    def test_token_ids_that_cannot_be_tokens_are_refused(self) -> None:
        world = self.world()
        ids = tokens(2 * PAGE)
        self.store(world, ids)
        negative = tokens(2 * PAGE)
        negative[-1] = -1
        for bad in (negative, ids.reshape(2, PAGE), np.repeat(ids, 2)[::2], np.asarray([-1] * PAGE, np.int32)):
            with pytest.raises(ValueError, match="token ids"):
                world.cache.match_prefix(bad)
            with pytest.raises(ValueError, match="token ids"):
                world.cache.insert(bad, {})
        world.verify()

    def test_an_int32_array_of_the_standard_library_is_a_prompt(self) -> None:
        world = self.world()
        ids = tokens(2 * PAGE)
        self.store(world, ids)
        assert world.cache.match_prefix(array("i", ids.tolist())).device_len == self.kept(len(ids))
        assert world.cache.insert(array("i", ids.tolist()), {}).length == self.kept(len(ids))

    def test_extra_keys_that_are_not_tuples_of_bytes_are_refused(self) -> None:
        world = self.world()
        for bad in ("salt", ("salt",), [b"salt"], b"salt", None, (1,)):
            with pytest.raises(TypeError):
                world.cache.match_prefix(tokens(PAGE), bad)  # pyright: ignore[reportArgumentType]
            with pytest.raises(TypeError):
                world.cache.insert(tokens(PAGE), {}, bad)  # pyright: ignore[reportArgumentType]
        world.verify()
