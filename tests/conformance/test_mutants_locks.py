"""Planted faults in locks, order and eviction: the kit is worth something only if it fails for each.

A mutant is the toy cache with one method gone wrong. It names the directed test that must notice it, and most must also stop the
state machine. The toy's own `check_integrity` counts pages and nothing more, so what is seen here is seen by the kit.
"""

from kvcache_conformance.toy_cache import Handle, ToyCache, ToyLock
from kvcache_conformance.toy_kit import ToyMutantTests


class UnlockReleasesTwice(ToyCache):
    def unlock_ref(self, lock, component=None):
        assert isinstance(lock, ToyLock)
        pages = [page for pages in lock.pages.values() for page in pages]
        if lock in self.locks:
            self.locks.remove(lock)
        for page in pages:
            page.locks -= 1


class UnlockTakesForeignLocks(ToyCache):
    def unlock_ref(self, lock, component=None):
        if lock in self.locks:
            super().unlock_ref(lock, component)


class LockIsRefusedForNothing(ToyCache):
    def lock_ref(self, match, length=None, *, host=False):
        return super().lock_ref(match, length, host=host) if match.device_len else None


class LockIgnoresLength(ToyCache):
    def lock_ref(self, match, length=None, *, host=False):
        return super().lock_ref(match, host=host)


class LockIsNotRevalidated(ToyCache):
    """A stale match delivers the pages it found once."""

    def __init__(self, *args):
        super().__init__(*args)
        self.ever = {}

    def insert(self, ids, values, extra_key=()):
        result = super().insert(ids, values, extra_key)
        self.ever |= self.pages
        return result

    def lock_ref(self, match, length=None, *, host=False):
        assert isinstance(match.handle, Handle)
        _, key, tokens = match.handle
        wanted = [place for name in self.geometries for place in self.needed(name, key, tokens, length or match.device_len)]
        lost = {place: self.ever[place] for place in wanted if place not in self.pages and place in self.ever}
        self.pages |= lost
        lock = super().lock_ref(match, length, host=host)
        for place in lost:
            del self.pages[place]
        return lock


class LocksLastPageOnly(ToyCache):
    def lock_ref(self, match, length=None, *, host=False):
        lock = super().lock_ref(match, length, host=host)
        if isinstance(lock, ToyLock):
            for pages in lock.pages.values():
                for page in pages[:-1]:
                    page.locks -= 1
        return lock

    def unlock_ref(self, lock, component=None):
        if isinstance(lock, ToyLock) and lock in self.locks:
            for pages in lock.pages.values():
                for page in pages[:-1]:
                    page.locks += 1
        super().unlock_ref(lock, component)


class BranchingMutant(ToyCache):
    """What goes wrong where a tree would split an edge: `at_split` gets the old pages on both sides of the branch."""

    def insert(self, ids, values, extra_key=()):
        before = set(self.pages)
        result = super().insert(ids, values, extra_key)
        new = min((place for place in set(self.pages) - before), key=lambda place: len(place[2]), default=None)
        if new is not None:
            stem = new[2][: -4 * self.page_size]
            siblings = [place for place in before if place[1] == new[1] and place[2].startswith(stem) and place[2] != stem]
            if stem and siblings:
                heads = [place for place in before if place[1] == new[1] and stem.startswith(place[2])]
                self.at_split([self.pages[place] for place in heads], [self.pages[place] for place in siblings])
        return result

    def at_split(self, heads, tails):
        raise NotImplementedError


class SplitLosesLocks(BranchingMutant):
    def at_split(self, heads, tails):
        for page in heads:
            page.locks = 0


class SplitLeavesLocksBehind(BranchingMutant):
    def at_split(self, heads, tails):
        for page in heads:
            page.locks += bool(page.locks)


class SplitRefreshes(BranchingMutant):
    def at_split(self, heads, tails):
        for page in tails:
            page.clock = self.clock


class MatchTouches(ToyCache):
    def match_prefix(self, ids, extra_key=()):
        match = super().match_prefix(ids, extra_key)
        self.touch(extra_key, ids.tobytes(), match.device_len)
        return match


class LockDoesNotTouch(ToyCache):
    def lock_ref(self, match, length=None, *, host=False):
        clocks = {place: page.clock for place, page in self.pages.items()}
        lock = super().lock_ref(match, length, host=host)
        for place, clock in clocks.items():
            self.pages[place].clock = clock
        return lock


class EvictsLockedPages(ToyCache):
    def victims(self, component):
        free = super().victims(component)
        return free or [place for place in self.pages if place[0] == component][-1:]


class EvictsFromTheRoot(ToyCache):
    def touch(self, key, tokens, length):
        for end in range(self.page_size, length + 1, self.page_size):
            super().touch(key, tokens, end)

    def victims(self, component):
        own = [place for place, page in self.pages.items() if place[0] == component and not page.locks]
        return [place for place in own if len(place[2]) == min(len(prefix) for _, _, prefix in own)]


class EvictsTheNewest(ToyCache):
    def touch(self, key, tokens, length):
        super().touch(key, tokens, length)
        for page in self.pages.values():
            page.clock = -abs(page.clock)


class EvictsOneMore(ToyCache):
    def evict(self, component, n, tier="device"):
        return super().evict(component, n + (n > 1), tier)


class EvictsOneLess(ToyCache):
    def evict(self, component, n, tier="device"):
        return super().evict(component, n - (n > 1), tier)


class EvictLosesAPage(ToyCache):
    def free(self, place):
        if len(place[2]) == 3 * 4 * self.page_size:
            self.pages.pop(place, None)
        else:
            super().free(place)


class NeverEvicts(ToyCache):
    def victims(self, component):
        return []


class ResetsUnderLocks(ToyCache):
    def reset(self):
        self.locks.clear()
        return super().reset()


class TestFaultsOfLocks(ToyMutantTests):
    with_machine = (
        (LockIgnoresLength, "test_every_page_boundary_can_be_locked"),
        (LockIsNotRevalidated, "test_a_stale_match_locks_nothing"),
        (LocksLastPageOnly, "test_locked_pages_stay_and_the_rest_goes"),
        (LockIsRefusedForNothing, "test_length_zero_is_always_lockable"),
        (MatchTouches, "test_a_match_does_not_refresh"),
        (LockDoesNotTouch, "test_a_lock_refreshes"),
        (SplitLosesLocks, "test_a_lock_survives_a_branch_inside_it"),
        (SplitLeavesLocksBehind, "test_a_lock_survives_a_branch_inside_it"),
        (SplitRefreshes, "test_a_branch_does_not_refresh_what_it_leaves"),
        (EvictsLockedPages, "test_locked_pages_stay_and_the_rest_goes"),
        (EvictsFromTheRoot, "test_the_last_victim_is_trimmed_at_a_page_boundary"),
        (EvictsTheNewest, "test_the_least_recently_inserted_goes_first"),
        (EvictsOneMore, "test_exactly_what_is_asked_is_freed"),
        (EvictsOneLess, "test_exactly_what_is_asked_is_freed"),
        (EvictLosesAPage, "test_exactly_what_is_asked_is_freed"),
        (NeverEvicts, "test_exactly_what_is_asked_is_freed"),
        (ResetsUnderLocks, "test_reset_forgets_everything_unless_a_lock_lives"),
    )
    alone = (
        (UnlockReleasesTwice, "test_unlocking_twice_is_an_error_and_releases_nothing"),
        (UnlockTakesForeignLocks, "test_a_lock_of_another_cache_is_refused"),
    )
