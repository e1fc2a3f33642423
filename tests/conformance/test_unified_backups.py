"""Traps of copies to the host (L1 -> L2), one directed test each, and the faults that each is there for.

Every call goes through the kit, which compares claims, owners and contents after each; a test asserts what is special to it.
"""

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_core.transfer_queue import TransferQueue
from kvcache_unified_hicache.backups import Backups
from kvcache_unified_hicache.copies_down import CopiesDown
from kvcache_unified_hicache.freeing import Freeing
from kvcache_unified_hicache.host_tier import HostTier


def test_a_write_that_fails_after_its_page_went(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    world.script.fates.extend([False, True])
    compute(world, ids(1, 2))
    compute(world, ids(1, 2, 3))
    evict(world)
    dropped = sum(world.cache.counters.dropped.values())
    world.settle()
    assert find(world, ids(1, 2, 3)).result[1:] == (0, 0, 0)
    assert sum(world.cache.counters.dropped.values()) - dropped == 12
    finish(world)


def test_a_write_that_fails_leaves_the_page_and_comes_again(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.fates.append(False)
    compute(world, ids(1, 2))
    world.settle()
    assert find(world, ids(1, 2)).result[1:] == (8, 8, 8)
    evict(world)
    world.settle()
    assert find(world, ids(1, 2)).result.host_len == 8
    finish(world)


def test_a_page_written_right_after_its_copy_was_asked_for(tiered):
    world = tiered(TierSizes(PAGE, 2, 64, "evict"))
    in_host(world, ids(1, 2))
    compute(world, ids(3, 4))
    # The victims' pages are where the load goes, in the same dispatch.
    started = load(world, ids(1, 2))
    world.settle()
    assert claim(world, started)
    evict(world)
    # A request writes the page in the same step.
    compute(world, ids(3, 4, 5)[:8])
    world.settle()
    for tokens in (ids(1, 2), ids(3, 4)):
        evict(world)
        started = load(world, tokens)
        world.settle()
        assert claim(world, started)
    finish(world)


def test_nothing_is_claimed_before_it_is_there(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    compute(world, ids(1, 2))
    world.host.idle()
    world.poll()
    world.verify()
    assert find(world, ids(1, 2)).result[1:] == (8, 8, 8)
    evict(world)
    assert find(world, ids(1, 2)).result[1:] == (0, 0, 8)
    world.settle()
    started = load(world, ids(1, 2))
    assert find(world, ids(1, 2)).result.device_len == 0
    assert not started.ticket.ok
    world.settle()
    assert claim(world, started)
    finish(world)


def test_a_skipped_backup_comes_again(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.congested = True
    compute(world, ids(1, 2))
    compute(world, ids(3, 4))
    assert not world.ledger.claims.copying["full"]
    counters = world.cache.counters
    assert counters.postponed == {"too many bytes in flight to L2": 16} and not counters.dropped
    world.script.congested = False
    compute(world, ids(1, 2, 5))
    assert len(world.ledger.claims.copying["full"]) == 3
    evict(world)
    world.settle()
    assert find(world, ids(1, 2, 5)).result.host_len == 12
    assert find(world, ids(3, 4)).result.host_len == 8
    assert not counters.dropped
    finish(world)


def test_what_is_skipped_is_given_up_only_when_it_goes(tiered):
    """Skipped backups are attempts, counted as often as they are made; a token is lost once, with the last of them."""
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    counters = world.cache.counters
    world.script.congested = True
    for _ in range(3):
        compute(world, ids(1, 2))
    assert counters.postponed == {"too many bytes in flight to L2": 24} and not counters.dropped
    evict(world)
    assert counters.dropped == {"too many bytes in flight to L2": 8}
    assert counters.postponed == {"too many bytes in flight to L2": 24}
    finish(world)


def test_what_is_seen_once_is_backed_up(tiered):
    """P3: a prefix that nobody asked for again, and each chunk of a chunked prompt."""
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    for end in (4, 8, 12):
        compute(world, ids(1, 2, 3)[:end])
        world.settle()
    evict(world)
    assert find(world, ids(1, 2, 3)).result.host_len == 12
    compute(world, ids(4, 5))
    world.settle()
    assert len(world.ledger.claims.copying["full"]) == 0
    world.evict_host("full", 3)
    assert world.cache.size("full", "host").evictable == 2
    finish(world)


def test_a_node_larger_than_the_host(tiered):
    world = tiered(TierSizes(PAGE, 16, 3, "insert"))
    in_host(world, ids(1, 2))
    compute(world, ids(3, 4, 5, 6, 7))
    evict(world)
    assert find(world, ids(1, 2)).result.host_len == 8
    finish(world)


def test_a_page_computed_again_under_a_load_is_copied_when_the_host_lost_it(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1))
    world.script.hold_back()
    started = load(world, ids(1))
    world.host.idle()
    world.cancel(started)
    world.evict_host("full", 1)
    compute(world, ids(1))
    evict(world)
    world.settle()
    assert find(world, ids(1)).result.host_len == 4
    finish(world)


def test_the_same_tokens_again_under_a_write(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    compute(world, ids(1, 2))
    evict(world)
    compute(world, ids(1, 2))
    assert find(world, ids(1, 2)).result.device_len == 8
    assert len(world.script.pending["write"]) == 1
    world.settle()
    evict(world)
    assert find(world, ids(1, 2)).result.host_len == 8
    finish(world)


def gathers_after_scatters(monkeypatch):
    """Copies out are dispatched after what writes their pages."""
    dispatch = TransferQueue.dispatch

    def late(self, buffers):
        gathers, self._gathers = self._gathers, []
        written = dispatch(self, buffers)
        self._gathers = gathers
        return dispatch(self, written)

    monkeypatch.setattr(TransferQueue, "dispatch", late)


def only_what_is_seen_twice(monkeypatch):
    """A write policy that many caches have: the first insert of a prefix copies nothing."""
    back_up_path, seen = CopiesDown.back_up_path, set[int]()

    def choosy(self, end):
        if end.number in seen:
            back_up_path(self, end)
        seen.add(end.number)

    monkeypatch.setattr(CopiesDown, "back_up_path", choosy)


class TestFaultsOfBackups(PlantedFaultTests):
    faults = (
        Fault("P3: a prefix is copied only when seen twice", test_what_is_seen_once_is_backed_up, only_what_is_seen_twice),
        Fault(
            "T12: nobody drops the empty node",
            test_a_write_that_fails_after_its_page_went,
            Replacement(Backups, "_commit", "store.settle(node, reclaimed)", "pass"),
        ),
        Fault(
            "T12: a failed copy is as good as any",
            test_a_write_that_fails_after_its_page_went,
            Replacement(Backups, "_commit", "if ok and cell.host is None", "if cell.host is None"),
        ),
        Fault(
            "what goes with it is not counted",
            test_a_write_that_fails_after_its_page_went,
            Replacement(Freeing, "give_up", "if reclaimed.lost_tokens:", "if False:"),
        ),
        Fault(
            "T15: claimed when it is dispatched",
            test_nothing_is_claimed_before_it_is_there,
            Replacement(
                Backups,
                "start",
                "self.running.add(operation)",
                "self.running.add(operation); self._store.put(node, c, slots.tobytes(), HOST)",
            ),
        ),
        Fault(
            "T21: nothing is copied when it is evicted",
            test_a_skipped_backup_comes_again,
            Replacement(CopiesDown, "save", "if other == c or", "if False and"),
        ),
        Fault(
            "T21: what comes again counts as lost",
            test_a_skipped_backup_comes_again,
            Replacement(Backups, "_skip", "self._counters.dropped if last", "self._counters.dropped if True"),
        ),
        Fault(
            "what is lost counts as put off",
            test_what_is_skipped_is_given_up_only_when_it_goes,
            Replacement(CopiesDown, "_take_backups", "last=node is victim and", "last=False and"),
        ),
        Fault(
            "T21: only the last node is copied",
            test_a_skipped_backup_comes_again,
            Replacement(
                CopiesDown, "back_up_path", "reversed(nodes):\n        for component", "nodes[:1]:\n        for component"
            ),
        ),
        Fault(
            "T22: everything is evicted for nothing",
            test_a_node_larger_than_the_host,
            Replacement(HostTier, "alloc", "if n > self.obtainable(c):", "if False:"),
        ),
        Fault(
            "any copy under way counts as one to the host",
            test_a_page_computed_again_under_a_load_is_copied_when_the_host_lost_it,
            Replacement(Backups, "wanted", "not in self.running", "is None"),
        ),
        Fault(
            "a copy under way is not seen",
            test_the_same_tokens_again_under_a_write,
            Replacement(Backups, "wanted", "and cell.operation not in self.running", ""),
        ),
        Fault(
            "a failed copy keeps its slots",
            test_a_write_that_fails_leaves_the_page_and_comes_again,
            Replacement(Backups, "_commit", "self._free(c, operation.rest(landed))", "pass"),
        ),
        Fault(
            "T13: gathers are dispatched after scatters",
            test_a_page_written_right_after_its_copy_was_asked_for,
            gathers_after_scatters,
        ),
    )
