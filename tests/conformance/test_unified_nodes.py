"""Traps of nodes under copies: split, locked, deleted, and the order in which they go. One directed test each, and its faults.

Every call goes through the kit, which compares claims, owners and contents after each; a test asserts what is special to it.
"""

import pytest

from kvcache_conformance.cache_kit import PAGE
from kvcache_conformance.geometries import FULL, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, in_host, load
from kvcache_conformance.tier_steps import TierSizes
from kvcache_radix import store as store_module
from kvcache_radix.integrity import nodes_of
from kvcache_radix.store import NodeStore
from kvcache_unified_hicache.cache import TRIM_TOKENS, UnifiedRadixCache
from kvcache_unified_hicache.operation import Operation


def test_a_split_under_a_write(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    compute(world, ids(1, 2, 3, 4))
    compute(world, ids(1, 5))
    compute(world, ids(1, 2, 6))
    world.settle()
    evict(world)
    for tokens in (ids(1, 2, 3, 4), ids(1, 5), ids(1, 2, 6)):
        assert find(world, tokens).result.host_len == len(tokens)
        started = load(world, tokens)
        world.settle()
        assert claim(world, started)
    finish(world)


def test_a_split_under_a_load(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2, 3, 4))
    world.script.hold_back()
    started = load(world, ids(1, 2, 3, 4))
    compute(world, ids(1, 2, 5))
    world.settle()
    assert claim(world, started)
    assert find(world, ids(1, 2, 3, 4)).result.device_len == 16
    finish(world)


def test_a_node_deleted_under_its_copies(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2))
    started = load(world, ids(1, 2))
    world.host.idle()
    world.cancel(started)
    world.script.hold_back()
    compute(world, ids(3, 4))
    assert world.checked.reset()
    world.verify()
    assert world.cache.size("full").in_flight == world.cache.size("full", "host").in_flight == 2
    world.settle()
    assert world.cache.size("full").free == 16
    assert world.cache.size("full", "host").free == 64
    compute(world, ids(1, 2))
    finish(world)


def test_a_split_write_that_fails_after_its_pages_went(tiered):
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    world.script.hold_back()
    world.script.fates.append(False)
    compute(world, ids(1, 2, 3))
    compute(world, ids(1, 5))
    evict(world)
    world.settle()
    assert find(world, ids(1, 2, 3)).result[1:] == (0, 0, 0)
    assert find(world, ids(1, 5)).result[1:] == (0, 0, 0)
    finish(world)


def test_what_a_dropped_start_takes_along_is_counted(tiered):
    world = tiered(TierSizes(PAGE, 16, 1, "insert"))
    compute(world, ids(1))
    world.script.congested = True
    world.settle()
    world.evict_host("full", 1)
    world.script.congested = False
    compute(world, ids(1, 2)[:8])
    world.settle()
    evict(world)
    finish(world)


def test_a_locked_chain_in_the_host_is_split(tiered):
    """L2: a load locks what is in the host alone, a branch cuts it there; both parts are locked, and both are released."""
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    in_host(world, ids(1, 2, 3, 4))
    world.script.hold_back()
    started = load(world, ids(1, 2, 3, 4))
    compute(world, ids(1, 2, 5))
    assert world.cache.size("full", "host").protected == 2
    assert world.evict_host("full", 64) == 2
    world.verify()
    world.settle()
    assert claim(world, started)
    finish(world)


def test_a_subtree_is_dropped_once(tiered):
    """T17: the start of a prefix fails to reach the host and goes, with two branches below it that did."""
    world = tiered(TierSizes(PAGE, 16, 64, "insert"))
    for tokens, fates in ((ids(1, 2), [False]), (ids(1, 2, 3), [False, True]), (ids(1, 2, 4, 5), [False, True])):
        world.script.fates.extend(fates)
        compute(world, tokens)
        world.settle()
    assert not world.script.fates
    assert world.cache.size("full", "host").evictable == 3
    world.script.fates.append(False)
    evict(world)
    world.settle()
    assert find(world, ids(1, 2, 4, 5)).result[1:] == (0, 0, 0)
    assert world.cache.size("full", "host").free == 64
    world.verify()
    compute(world, ids(1, 2, 3))
    finish(world)


def order_of_going(world, tier):
    """Both halves of ten nodes that were cut are as old as each other. The prompts and pages of a window that goes first."""
    for first in range(10, 110, 10):
        tokens = ids(first, first + 1, first + 2, first + 3)
        whole = RequestModel(world.checked, tokens)
        assert whole.admit()
        assert whole.compute(len(tokens))
        whole.finish()
        compute(world, ids(first, first + 1, first + 2, first + 4, first + 5, first + 6))
    world.settle()
    order = []
    before = dict(world.ledger.claims.resident["swa"]) if tier == "host" else dict(world.checked.model.resident("swa"))
    while before:
        if tier == "host":
            world.evict_host("swa", 1)
            left = dict(world.ledger.claims.resident["swa"])
        else:
            world.checked.evict("swa", 1)
            left = dict(world.checked.model.resident("swa"))
        assert len(left) < len(before)
        order.append(sorted(map(str, before.items() - left.items())))
        before = left
    return order


def test_equal_histories_lose_the_same_pages_in_both_tiers(tiered):
    """T16: ranks share no memory layout, so nothing may depend on an address, where two nodes are equally old either."""
    for tier in ("device", "host"):
        orders = []
        for noise in (1, 977):
            ballast = [bytearray(64 + i % noise) for i in range(5000)]
            del ballast[::2]
            world = tiered(TierSizes(PAGE, 96, 128, "insert"), (FULL, SWA))
            orders.append(order_of_going(world, tier))
            finish(world)
        assert len(orders[0]) > 10
        assert orders[0] == orders[1]


@pytest.mark.parametrize("components", [(FULL,), (FULL, SWA)], ids=["F", "FS"])
def test_a_prefix_that_goes_page_by_page_stays_few_nodes(tiered, components):
    """In decoding a host asks for one page at a time; what has a copy stays in the tree, and every later match walks it."""
    prompt = ids(*range(1, 257))
    world = tiered(TierSizes(PAGE, 64 * 64, 128 * 64, "insert"), components)
    compute(world, prompt)
    world.settle()
    asked = 0
    while world.cache.size("full").evictable:
        assert world.checked.evict("full", 1)
        asked += 1
    world.verify()
    assert find(world, prompt).result.host_len == len(prompt)
    nodes = len(list(nodes_of(world.cache._tree.store)))
    assert asked <= nodes <= 2 + len(prompt) // TRIM_TOKENS
    finish(world)


def locks_stay_with_the_tail(monkeypatch):
    real = store_module._split_cell

    def planted(geometry, tail, cut):
        head = real(geometry, tail, cut)
        head.locks = 0
        return head

    monkeypatch.setattr(store_module, "_split_cell", planted)


def addresses_break_ties(monkeypatch):
    number = "hash(str(id(parent))) ^ hash(str(id(cells)))"
    Replacement(NodeStore, "split", "at, self._number, tuple(cells)", f"at, {number}, tuple(cells)")(monkeypatch)
    attach = "node = Node(parent, key, end, self._number, tuple([Cell() for _ in self.geometries]))"
    cells = f"cells = tuple([Cell() for _ in self.geometries]); node = Node(parent, key, end, {number}, cells)"
    Replacement(NodeStore, "attach", attach, cells)(monkeypatch)


class TestFaultsOfNodes(PlantedFaultTests):
    faults = (
        Fault(
            "a node a page",
            lambda tiered: test_a_prefix_that_goes_page_by_page_stays_few_nodes(tiered, (FULL,)),
            Replacement(UnifiedRadixCache, "evict", "copied=trim", "copied=0"),
        ),
        Fault(
            "T9: the copy does not learn of splits",
            test_a_split_under_a_write,
            Replacement(Operation, "on_split", "self.nodes.append(head)", "pass"),
        ),
        Fault(
            "T9: pages by node, not by position",
            test_a_split_under_a_write,
            Replacement(
                Operation,
                "_part",
                "slice((node.start - self._start) // self._page_size, (node.end - self._start) // self._page_size)",
                "slice(0, (node.end - node.start) // self._page_size)",
            ),
        ),
        Fault(
            "T9: the load does not learn of splits",
            test_a_split_under_a_load,
            Replacement(Operation, "on_split", "self.nodes.append(head)", "pass"),
        ),
        Fault(
            "T10: a reset frees what copies are on their way to",
            test_a_node_deleted_under_its_copies,
            Replacement(
                UnifiedRadixCache,
                "reset",
                "self._freeing.release(reclaimed)",
                "self._freeing.release(reclaimed); [self._freeing.slots(o.c, o.destination) for o in self._host.backups.running]",
            ),
        ),
        Fault(
            "T10: a copy lands on a deleted node",
            test_a_split_write_that_fails_after_its_pages_went,
            Replacement(Operation, "finish", "if node.parent is not None and cell", "if cell"),
        ),
        Fault("L2: the head of a split is not locked", test_a_locked_chain_in_the_host_is_split, locks_stay_with_the_tail),
        Fault(
            "T17: what lies below a dropped node is freed twice",
            test_a_subtree_is_dropped_once,
            Replacement(
                NodeStore,
                "drop",
                "reclaimed.add(HOST, c, self.take(each, c, HOST))",
                "data = self.take(each, c, HOST); [reclaimed.add(HOST, c, data) for _ in range(1 + (each is not node))]",
            ),
        ),
        Fault(
            "T17: what lies below a dropped node is lost",
            test_a_subtree_is_dropped_once,
            Replacement(
                NodeStore, "drop", "doomed.extend(each.children.values())", "doomed.extend([*each.children.values()][:1])"
            ),
        ),
        Fault("T16: addresses break ties", test_equal_histories_lose_the_same_pages_in_both_tiers, addresses_break_ties),
    )
