"""Directed tests of ownership: what insert takes, what comes back, and that a broken offer takes nothing. CONTRACT O1 to O5."""

from itertools import pairwise

import numpy as np
import pytest

from kvcache_conformance.cache_kit import PAGE, CacheKit, tokens
from kvcache_core.contracts.results import Segment, Values
from kvcache_core.contracts.tokens import floor_page


def _pages(*indices: int) -> np.ndarray:
    return np.asarray(indices, np.int32)


class InsertTests(CacheKit):
    def test_what_is_new_moves_and_what_is_known_comes_back(self) -> None:
        world = self.world()
        ids = tokens(3 * PAGE)
        first = self.compute(world, ids)
        assert world.insert(ids, first).length == self.kept(len(ids))
        again = self.compute(world, ids)
        result = world.insert(ids, again)
        assert result.length == self.kept(len(ids))
        for name in world.host.geometries:
            assert len(result.duplicates[name]) == (3 if self.reuses_prefixes else 0)
            assert len(result.refused[name]) == (0 if self.reuses_prefixes else 3)
        for values in (again, first):
            self.give_up(world, values)
        world.verify()
        self.drain(world)

    def test_an_offer_that_begins_where_the_known_ends_extends_it(self) -> None:
        world = self.world()
        ids = tokens(4 * PAGE)
        self.store(world, ids[: 2 * PAGE])
        values = self.compute(world, ids, start=2 * PAGE)
        assert world.insert(ids, values).length == self.kept(len(ids))
        world.verify()
        assert world.match(ids).result.device_len == self.kept(len(ids))

    def test_an_offer_that_begins_behind_a_gap_is_refused(self) -> None:
        world = self.world()
        ids = tokens(4 * PAGE)
        self.store(world, ids[:PAGE])
        values = self.compute(world, ids, start=2 * PAGE)
        if any(geometry.prefix_closed for geometry in world.host.geometries.values()):
            assert world.insert(ids, values).length == self.kept(PAGE)
        else:
            world.insert(ids, values)
        world.verify()
        self.give_up(world, values)
        self.drain(world)

    def test_overlapping_offers_are_sorted_out_page_by_page(self) -> None:
        world = self.world()
        ids = tokens(6 * PAGE)
        self.store(world, ids[: 3 * PAGE])
        branch = np.concatenate([ids[: 2 * PAGE], tokens(2 * PAGE, 100)])
        for offered, start in ((ids, PAGE), (branch, 0), (ids, 3 * PAGE), (branch, 2 * PAGE)):
            values = self.compute(world, offered, start=start)
            assert world.insert(offered, values).length == self.kept(len(offered))
            self.give_up(world, values)
            world.verify()
        self.drain(world)

    def test_several_segments_are_one_offer(self) -> None:
        world = self.world()
        ids = tokens(4 * PAGE)
        values: dict[str, list[Segment]] = {}
        for name, segments in self.compute(world, ids).items():
            if world.host.geometries[name].at_node_end:
                values[name] = list(segments)
            else:
                whole = segments[0]
                cuts = (0, 1, 3, 4)
                values[name] = [Segment(start * PAGE, end * PAGE, whole.indices[start:end]) for start, end in pairwise(cuts)]
        assert world.insert(ids, values).length == self.kept(len(ids))
        world.verify()

    def test_an_empty_offer_takes_nothing_and_says_what_is_known(self) -> None:
        world = self.world()
        ids = tokens(3 * PAGE)
        assert world.insert(ids, {}).length == 0
        self.store(world, ids[: 2 * PAGE])
        assert world.insert(ids, {}).length == self.kept(2 * PAGE)
        assert world.insert(ids, dict.fromkeys(world.host.geometries, ())).length == self.kept(2 * PAGE)
        assert world.insert(tokens(0), {}).length == 0
        world.verify()
        self.drain(world)

    def test_what_was_inserted_is_matched(self) -> None:
        world = self.world(page_size=2)
        for length in (0, 2, 4, 6, 8):
            ids = tokens(length, 100 * length)
            stored = self.store(world, ids)
            assert stored == self.kept(length, 2)
            assert world.match(ids[:stored]).result.device_len == stored
            self.drain(world)

    def test_a_broken_offer_is_raised_before_anything_is_taken(self) -> None:
        for values, ids in self._broken():
            world = self.world()
            self.store(world, tokens(PAGE))
            for name in world.host.geometries:
                assert world.alloc(name, 10) is not None
            with pytest.raises(ValueError, match=r"\S"):
                world.cache.insert(ids, values)
            world.verify()
            assert world.match(tokens(4 * PAGE)).result.device_len == self.kept(PAGE)

    def test_tokens_that_are_no_whole_pages_are_refused(self) -> None:
        world = self.world()
        for length in (1, PAGE - 1, PAGE + 1):
            with pytest.raises(ValueError, match="page"):
                world.cache.insert(tokens(length), {})

    def test_page_sizes_and_lengths_around_a_page(self) -> None:
        for page in (1, 2, 16, 64, 256):
            world = self.world(page)
            for length in sorted({0, 1, page - 1, page, page + 1, 2 * page - 1, 2 * page, 2 * page + 1}):
                ids = tokens(length, 1000 * length)
                stored = self.store(world, ids[: floor_page(length, page)])
                assert stored == world.match(ids).result.device_len == self.kept(length, page)
                world.unlock(self.hold(world, ids))
                self.drain(world)

    def _broken(self) -> list[tuple[Values, np.ndarray]]:
        """Offers of pages 5 to 9, which a request owns, for three pages of which the first is known."""
        ids = tokens(3 * PAGE)
        whole = Segment(0, 3 * PAGE, _pages(5, 6, 7))
        broken: list[Values] = [{"no such component": [whole]}]
        names = {spec.name: spec.state_shape is not None for spec in self.components}
        good: dict[str, list[Segment]] = {
            name: [Segment(2 * PAGE, 3 * PAGE, _pages(7))] if state else [whole] for name, state in names.items()
        }
        for name, at_node_end in names.items():
            cases = [
                [Segment(1, 3 * PAGE, _pages(5, 6, 7))],
                [Segment(0, 3 * PAGE - 1, _pages(5, 6, 7))],
                [Segment(0, 4 * PAGE, _pages(5, 6, 7, 8))],
                [Segment(2 * PAGE, PAGE, _pages())],
                [Segment(-PAGE, 0, _pages(5))],
                [Segment(0, 3 * PAGE, _pages(5, 6))],
                [Segment(0, 3 * PAGE, _pages(5, 6, 7, 8))],
                [Segment(0, 3 * PAGE, _pages(5, 6, 7).astype(np.int64))],  # pyright: ignore[reportArgumentType]
                [Segment(0, 3 * PAGE, _pages(5, 6, 7).reshape(3, 1))],
                [Segment(0, 3 * PAGE, _pages(5, 0, 7))],
                [Segment(0, 3 * PAGE, _pages(5, -6, 7))],
                [Segment(0, 2 * PAGE, _pages(5, 6)), Segment(PAGE, 3 * PAGE, _pages(7, 8))],
            ]
            if at_node_end:
                cases.append([Segment(PAGE, 2 * PAGE, _pages(5)), Segment(0, PAGE, _pages(6))])
            else:
                cases.append([Segment(0, PAGE, _pages(5)), Segment(2 * PAGE, 3 * PAGE, _pages(7))])
            broken += [{**good, name: case} for case in cases]
        return [(values, ids) for values in broken]
