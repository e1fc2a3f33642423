"""Planted faults in keys, ownership and accounts: the kit is worth something only if it fails for each.

A mutant is the toy cache with one method gone wrong. It names the directed test that must notice it, and most must also stop the
state machine. The toy's own `check_integrity` counts pages and nothing more, so what is seen here is seen by the kit.
"""

import numpy as np

from kvcache_conformance.toy_cache import Page, ToyCache
from kvcache_conformance.toy_kit import ToyMutantTests
from kvcache_core.contracts.results import InsertResult, MatchResult


class ExtraKeyIgnored(ToyCache):
    def root(self, extra_key):
        return ()


class ExtraKeyJoined(ToyCache):
    def root(self, extra_key):
        return (b"".join(extra_key),)


class AbsentIsEmpty(ToyCache):
    def root(self, extra_key):
        return extra_key or (b"",)


class KeyedByPageAlone(ToyCache):
    """Two prefixes that differ before a page share that page: the wrong page for a branch."""

    def place(self, component, key, tokens, end):
        size = 4 * self.page_size
        return component, key, bytes(end * 4 - size) + tokens[end * 4 - size : end * 4]


class KeyedByItsChunk(ToyCache):
    """A page is known by the chunk it came in: whoever asks in other chunks misses it."""

    def insert(self, ids, values, extra_key=()):
        known = set(self.pages)
        result = super().insert(ids, values, extra_key)
        if len({place[2] for place in set(self.pages) - known}) == 1 and known:
            for place in set(self.pages) - known:
                self.pages[(place[0], (*place[1], b"chunk"), place[2])] = self.pages.pop(place)
        return result


class ResetKeepsPages(ToyCache):
    def reset(self):
        return not self.locks


class RoundsUpToAPage(ToyCache):
    """A page of which only the first tokens were asked for counts as found."""

    def match_prefix(self, ids, extra_key=()):
        match = super().match_prefix(ids, extra_key)
        asked = np.asarray(ids).tobytes()
        longer = [len(prefix) // 4 for _, key, prefix in self.pages if key == extra_key and prefix.startswith(asked)]
        length = min(longer, default=0) if match.device_len < len(ids) else 0
        length = max(length, match.device_len)
        return MatchResult(match.handle, length, length, length)


class AcceptsInt64(ToyCache):
    def match_prefix(self, ids, extra_key=()):
        return super().match_prefix(np.frombuffer(np.asarray(ids).tobytes(), np.int32), extra_key)


class PageThatPoints:
    def __init__(self, view, clock):
        self.view = view
        self.clock = clock
        self.locks = 0

    @property
    def index(self):
        return int(self.view[0])


class KeepsAViewOfIndices(ToyCache):
    def insert(self, ids, values, extra_key=()):
        result = super().insert(ids, values, extra_key)
        views = {}
        for segments in values.values():
            for segment in segments:
                views |= {index: segment.indices[i : i + 1] for i, index in enumerate(segment.indices.tolist())}
        for place, page in self.pages.items():
            if page.index in views:
                self.pages[place] = PageThatPoints(views[page.index], page.clock)  # pyright: ignore[reportArgumentType]
        return result


class FreesDuplicates(ToyCache):
    def insert(self, ids, values, extra_key=()):
        result = super().insert(ids, values, extra_key)
        for name, indices in result.duplicates.items():
            self.allocators[name].free(indices)
        return result


class SwallowsDuplicates(ToyCache):
    def insert(self, ids, values, extra_key=()):
        result = super().insert(ids, values, extra_key)
        return InsertResult(result.length, {name: indices[:0] for name, indices in result.duplicates.items()}, result.refused)


class NewcomersReplace(ToyCache):
    def insert(self, ids, values, extra_key=()):
        for segments in values.values():
            for segment in segments:
                for i, index in enumerate(segment.indices.tolist()):
                    end = segment.start + (i + 1) * self.page_size
                    old = self.pages.get(self.place("full", extra_key, np.asarray(ids).tobytes(), end))
                    if old is not None:
                        segment.indices[i], old.index = old.index, index
        return super().insert(ids, values, extra_key)


class TakesBehindAGap(ToyCache):
    def insert(self, ids, values, extra_key=()):
        result = super().insert(ids, values, extra_key)
        for place, index in self.read_values(extra_key, np.asarray(ids).tobytes(), values).items():
            if index in result.refused.get("full", ()):
                self.pages.setdefault(place, Page(index))
        return InsertResult(result.length, result.duplicates, {name: indices[:0] for name, indices in result.refused.items()})


class TakesBeforeItChecks(ToyCache):
    def insert(self, ids, values, extra_key=()):
        for segments in values.values():
            for segment in segments[:1]:
                if segment.indices.dtype == np.int32 and not segment.start % self.page_size and segment.indices.ndim == 1:
                    for i, index in enumerate(segment.indices.tolist()):
                        end = segment.start + (i + 1) * self.page_size
                        self.pages.setdefault(self.place("full", extra_key, np.asarray(ids).tobytes(), end), Page(index))
        return super().insert(ids, values, extra_key)


class CountsLockedAsEvictable(ToyCache):
    def size(self, component, tier="device"):
        size = super().size(component, tier)
        return size._replace(evictable=size.evictable + size.protected, protected=0)


class CountsTheDummy(ToyCache):
    def size(self, component, tier="device"):
        size = super().size(component, tier)
        return size._replace(request_owned=size.request_owned + 1, total=size.total + 1)


class ChecksNothing(ToyCache):
    def check_integrity(self, request_owned=None):
        pass


class TestFaultsOfPages(ToyMutantTests):
    with_machine = (
        (ExtraKeyIgnored, "test_extra_keys_are_framed_and_never_share"),
        (ExtraKeyJoined, "test_extra_keys_are_framed_and_never_share"),
        (AbsentIsEmpty, "test_extra_keys_are_framed_and_never_share"),
        (KeyedByPageAlone, "test_branches_of_one_prefix_are_told_apart"),
        (KeyedByItsChunk, "test_every_way_of_chunking_gives_the_same_prefix"),
        (ResetKeepsPages, "test_reset_forgets_everything_unless_a_lock_lives"),
        (KeepsAViewOfIndices, "test_what_is_new_moves_and_what_is_known_comes_back"),
        (FreesDuplicates, "test_two_requests_compute_the_same_prefix_at_the_same_time"),
        (SwallowsDuplicates, "test_what_is_new_moves_and_what_is_known_comes_back"),
        (NewcomersReplace, "test_two_requests_compute_the_same_prefix_at_the_same_time"),
        (RoundsUpToAPage, "test_whole_pages_of_a_prefix_are_found"),
        (CountsLockedAsEvictable, "test_every_page_is_counted_once"),
        (CountsTheDummy, "test_every_page_is_counted_once"),
    )
    alone = (
        (TakesBehindAGap, "test_an_offer_that_begins_behind_a_gap_is_refused"),
        (TakesBeforeItChecks, "test_a_broken_offer_is_raised_before_anything_is_taken"),
        (AcceptsInt64, "test_token_ids_that_are_not_int32_arrays_are_refused"),
        (ChecksNothing, "test_the_integrity_check_finds_a_page_without_an_owner"),
    )
