"""The tree with a host tier, without anything that copies: residency, victims and locks as caches with tiers will rely on them.

"Copies" are index numbers here; a copy out is `put` in the host tier and a load is `put` in the device tier. Each planted fault
names the test that fails under it.
"""

import random

import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.results import Segment, full
from kvcache_radix import reach as reach_module
from kvcache_radix import store as store_module
from kvcache_radix import tree as tree_module
from kvcache_radix.integrity import check_tree
from kvcache_radix.store import DEVICE, HOST, NodeStore
from kvcache_radix.tree import RadixTree


@pytest.fixture
def make_tree(make_parts):
    def build(components="F", page=4, cap=None, window=8):
        return RadixTree(page, list(make_parts(components, page, window=window).geometries.values()), host=True, edge_cap=cap)

    return build


def path_of(tree, ids, extra_key=()):
    node, path = tree.match(ids, extra_key).handle, []
    while node is not None and node.parent is not None:
        path.insert(0, node)
        node = node.parent
    return path


def back_up(tree, node, numbers):
    """A copy out of everything on the node, committed at once."""
    for c, cell in enumerate(node.cells):
        if cell.device is not None and cell.host is None:
            units = len(cell.device) // 4
            tree.store.put(node, c, np.array([next(numbers) for _ in range(units)], np.int32).tobytes(), HOST)
            tree.store.offer(node, c)


def load(tree, node, numbers):
    for c, cell in enumerate(node.cells):
        above_there = not tree.store.geometries[c].prefix_closed or node.parent.cells[c].device is not None
        if cell.host is not None and cell.device is None and above_there:
            tree.store.put(node, c, np.array([next(numbers) for _ in range(len(cell.host) // 4)], np.int32).tobytes())
            tree.store.offer(node, c)


def test_a_demoted_prefix_is_known_to_the_host_alone(make_tree, tokens):
    tree, numbers = make_tree(), iter(range(100, 1000))
    ids = tokens(range(16))
    tree.insert(ids, full(np.arange(1, 5, dtype=np.int32), 4))
    (node,) = path_of(tree, ids)
    back_up(tree, node, numbers)
    assert tree.evict("full", 3).indices(DEVICE, 0).tolist() == [2, 3, 4]
    check_tree(tree)
    assert tree.match(ids)[1:] == (4, 16, 16)
    assert tree.lock(tree.match(ids), 16) is None, "not on the device"
    assert (tree.store.evictable[DEVICE], tree.store.evictable[HOST]) == ([1], [4])
    tree.evict("full", 1)
    assert tree.match(ids)[1:] == (0, 16, 16)
    check_tree(tree)


def test_a_host_lock_protects_the_source_of_a_load(make_tree, tokens):
    """LK1 and LK6 (T7): host data that has no device copy is no victim while a receipt covers it."""
    tree, numbers = make_tree(), iter(range(100, 1000))
    ids = tokens(range(16))
    tree.insert(ids, full(np.arange(1, 5, dtype=np.int32), 4))
    back_up(tree, path_of(tree, ids)[0], numbers)
    tree.evict("full", 4)
    lock = tree.lock(tree.match(ids), host=True)
    assert lock is not None and lock.length == 16
    check_tree(tree)
    assert tree.store.protected[HOST] == [4]
    assert tree.evict("full", 4, "host").count(HOST, 0) == 0
    for node in path_of(tree, ids):
        load(tree, node, numbers)
    check_tree(tree)
    assert lock.segment("full").indices.tolist() == list(range(104, 108))
    assert tree.store.protected[HOST] == [0], "with a device copy the host copy is free to go"
    assert tree.evict("full", 4, "host").count(HOST, 0) == 4
    check_tree(tree)
    tree.unlock(lock)
    assert tree.evict("full", 4).count(DEVICE, 0) == 4
    assert not tree.store.roots


def test_host_only_nodes_go_leaf_first(make_tree, tokens):
    tree, numbers = make_tree(), iter(range(100, 1000))
    tree.insert(tokens(range(8)), full(np.arange(1, 3, dtype=np.int32), 4))
    tree.insert(tokens(range(16)), full(np.arange(3, 5, dtype=np.int32), 4, start=8))
    for node in path_of(tree, tokens(range(16))):
        back_up(tree, node, numbers)
    tree.evict("full", 4)
    check_tree(tree)
    assert tree.evict("full", 1, "host").indices(HOST, 0).tolist() == [103]
    assert tree.match(tokens(range(16)))[1:] == (0, 12, 12)
    check_tree(tree)
    assert tree.evict("full", 9, "host").count(HOST, 0) == 3
    assert not tree.store.roots


def test_what_is_only_on_its_way_never_matches(make_tree, tokens):
    """T15: no claim before the commit. The node stays, because its copy out may still arrive."""
    tree = make_tree()
    tree.insert(tokens(range(8)), full(np.arange(1, 3, dtype=np.int32), 4))
    tree.insert(tokens(range(16)), full(np.arange(3, 5, dtype=np.int32), 4, start=8))
    leaf = path_of(tree, tokens(range(16)))[-1]
    leaf.cells[0].operation = object()
    assert tree.evict("full", 2).count(DEVICE, 0) == 2
    check_tree(tree)
    assert tree.match(tokens(range(16)))[1:] == (8, 8, 16)
    assert tree.lock(tree.match(tokens(range(16))), 16, host=True) is None
    leaf.cells[0].operation = None
    tree.store.put(leaf, 0, np.array([50, 51], np.int32).tobytes(), HOST)
    tree.store.offer(leaf, 0)
    check_tree(tree)
    assert tree.match(tokens(range(16)))[1:] == (8, 16, 16)


def test_an_insert_gives_host_only_nodes_device_data(make_tree, tokens):
    """Adoption: no device copy, and the parent has one."""
    tree, numbers = make_tree(), iter(range(100, 1000))
    ids = tokens(range(16))
    tree.insert(ids, full(np.arange(1, 5, dtype=np.int32), 4))
    back_up(tree, path_of(tree, ids)[0], numbers)
    tree.evict("full", 3)
    late = tree.insert(ids, full(np.array([7, 8], np.int32), 4, start=8))
    assert (late.length, late.refused["full"].tolist()) == (4, [7, 8])
    done = tree.insert(tokens(range(12)), full(np.array([5, 6, 7], np.int32), 4))
    assert (done.length, done.duplicates["full"].tolist()) == (12, [5])
    check_tree(tree)
    assert tree.match(ids)[1:] == (12, 16, 16)
    lock = tree.lock(tree.match(ids))
    assert lock is not None and lock.segment("full").indices.tolist() == [1, 6, 7]


def test_what_storage_brings_is_attached_in_the_host_tier(make_tree, tokens):
    """A copy in either tier makes an arrival a duplicate; a gap makes it useless (T23, T24)."""
    tree = make_tree()
    tree.insert(tokens(range(8)), full(np.arange(1, 3, dtype=np.int32), 4))
    gap = tree.insert_host(tokens(range(20)), full(np.array([50, 51], np.int32), 4, start=12))
    assert (gap.length, gap.refused["full"].tolist()) == (8, [50, 51])
    done = tree.insert_host(tokens(range(16)), full(np.array([50, 51, 52], np.int32), 4, start=4))
    assert (done.length, done.duplicates["full"].tolist()) == (16, [50])
    check_tree(tree)
    assert tree.match(tokens(range(16)))[1:] == (8, 16, 16)


def test_windows_and_states_have_tiers_of_their_own(make_tree, tokens):
    """FAULTS B7: the usable length is the longest at which every component is whole."""
    tree, numbers = make_tree("FSR"), iter(range(100, 1000))
    ids = tokens(range(16))
    pages = np.arange(1, 5, dtype=np.int32)
    states = (Segment(4, 8, pages[:1]), Segment(12, 16, pages[1:2]))
    tree.insert(ids, {"full": (Segment(0, 16, pages),), "swa": (Segment(0, 16, pages),), "recurrent": states})
    for node in path_of(tree, ids):
        back_up(tree, node, numbers)
    assert tree.match(ids)[1:] == (16, 16, 16)
    tree.evict("recurrent", 1)
    assert tree.match(ids)[1:] == (8, 16, 16)
    tree.evict("recurrent", 1, "host")
    check_tree(tree)
    assert tree.match(ids)[1:] == (8, 8, 16), "the state at 16 is gone from both"
    tree.evict("swa", 4)
    assert tree.match(ids)[1:] == (0, 8, 16)
    check_tree(tree)


@pytest.mark.parametrize("components", ["F", "S", "R", "FS", "FSR"])
def test_random_histories_keep_every_invariant(make_tree, tokens, components):
    """No model here, only the invariants after each step; the caches with tiers bring content and a model."""
    rng = random.Random(components)
    loads = hits = 0
    for cap in (1, 3, None):
        tree, numbers = make_tree(components, page=2, cap=cap, window=5), iter(range(1, 10**6))
        prompts, locks = [tokens(range(6))], []
        for _ in range(250):
            ids = rng.choice(prompts[-5:])
            if rng.random() < 0.3:
                more = [rng.randrange(3) for _ in range(2 * rng.randint(1, 4))]
                ids = tokens(ids[: 2 * rng.randint(0, len(ids) // 2)].tolist(), more)[:20]
                prompts.append(ids)
            action = rng.random()
            n = len(ids) // 2
            if action < 0.35:
                values = {}
                for name in tree.store.components:
                    count = 1 if name == "recurrent" else n
                    start = len(ids) - 2 if name == "recurrent" else 0
                    indices = np.array([next(numbers) for _ in range(count)], np.int32)
                    values[name] = (Segment(start, len(ids), indices),)
                insert = tree.insert_host if rng.random() < 0.3 else tree.insert
                assert insert(ids, values).length == len(ids)
            elif action < 0.55:
                for node in path_of(tree, ids):
                    back_up(tree, node, numbers)
            elif action < 0.65:
                lock = tree.lock(tree.match(ids), host=True)
                assert lock is not None
                locks.append(lock)
                hits += lock.length > tree.match(ids).device_len
                if rng.random() < 0.5:
                    for node in path_of(tree, ids[: lock.length]):
                        loads += any(cell.device is None and cell.host is not None for cell in node.cells)
                        load(tree, node, numbers)
            elif action < 0.8 and locks:
                tree.unlock(locks.pop(rng.randrange(len(locks))))
            else:
                name = rng.choice(list(tree.store.components))
                tree.evict(name, rng.randint(1, 6), rng.choice(["device", "device", "device", "host"]))
            check_tree(tree)
        for lock in locks:
            tree.unlock(lock)
        for tier in ("device", "host"):
            for name in tree.store.components:
                tree.evict(name, 10**6, tier)
                check_tree(tree)
        assert not tree.store.roots
    assert hits > 5 and loads > 5


# planted faults


def a_copy_under_way_is_a_copy(monkeypatch):
    Replacement(reach_module, "reach_closed", "if node.cells[0].host is None:", "if node.cells[0].empty:")(monkeypatch)
    monkeypatch.setattr(tree_module, "reach_closed", reach_module.reach_closed)


def a_state_is_not_asked_for(monkeypatch):
    Replacement(reach_module, "_lacking", "if node.end > end or (", "if False and (")(monkeypatch)


def host_victims_ignore_locks(monkeypatch):
    def leaf(node, cell):
        return cell.host is not None and (cell.device is not None or not cell.host_kids)

    device, (host_any, _) = store_module._CANDIDATE
    monkeypatch.setattr(store_module, "_CANDIDATE", (device, (host_any, leaf)))


class TestFaultsOfTiers(PlantedFaultTests):
    faults = (
        Fault(
            "T7: host victims ignore locks",
            test_a_host_lock_protects_the_source_of_a_load,
            host_victims_ignore_locks,
        ),
        Fault(
            "T7: a lock on the host's data counts as none",
            test_a_host_lock_protects_the_source_of_a_load,
            Replacement(NodeStore, "pin", "elif cell.host is not None:", "elif False:"),
        ),
        Fault("T15: a copy under way is a copy", test_what_is_only_on_its_way_never_matches, a_copy_under_way_is_a_copy),
        Fault(
            "T15: a node whose copy is under way is dropped",
            test_what_is_only_on_its_way_never_matches,
            Replacement(NodeStore, "settle", "if node.cells[self.closed].empty:", "if node.cells[self.closed].host is None:"),
        ),
        Fault(
            "B7: a state is not asked for",
            test_windows_and_states_have_tiers_of_their_own,
            a_state_is_not_asked_for,
        ),
    )
