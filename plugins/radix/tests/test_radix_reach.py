"""Two short ways must decide what the rule in `usable` decides: `reach`, which walks upwards no further than it must, and the
insert that sees at once that everything will be usable.
"""

import random
from itertools import product

import numpy as np
import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.results import Segment
from kvcache_radix import reach as reach_module
from kvcache_radix.insertion import Insertion
from kvcache_radix.reach import reach
from kvcache_radix.store import DEVICE, HOST, NodeStore
from kvcache_radix.tree import RadixTree
from kvcache_radix.usable import longest_usable

PAGE = 4
SETS = ("F", "S", "FS", "FR", "SR", "FSR")


def a_path(geometries, rng):
    """Nodes from the root down with random residency; device data of full attention is a prefix, as it always is."""
    store = NodeStore(PAGE, geometries, host=True)
    node, path = store.root(()), []
    pages = [rng.randint(1, 4) for _ in range(rng.randint(1, 6))]
    on_device = rng.randint(0, len(pages))
    for number, n in enumerate(pages):
        node = store.attach(node, np.full(n * PAGE, number, np.int32).tobytes())
        path.append(node)
        for c, geometry in enumerate(geometries):
            data = bytes(4) if geometry.at_node_end else bytes(4 * n)
            if number < on_device if geometry.prefix_closed else rng.random() < 0.6:
                store.put(node, c, data, DEVICE)
            if rng.random() < 0.6:
                store.put(node, c, data, HOST)
    return path


def by_the_rule(geometries, path, matched, host):
    ends = [min(node.end, matched) for node in path]
    resident = [
        [
            (node.cells[c].device is not None or (host and node.cells[c].host is not None))
            and not (geometry.at_node_end and node.end > end)
            for node, end in zip(path, ends, strict=True)
        ]
        for c, geometry in enumerate(geometries)
    ]
    return longest_usable(geometries, ends, resident)


# A window of 1 alone would need no data at all, so that no tree is made of it.
@pytest.mark.parametrize(
    ("components", "window"),
    [case for case in product(SETS, (1, 4, 6, 40)) if "S" in case[0] or case[1] == 6 if case != ("S", 1)],
)
def test_walking_upwards_finds_what_the_rule_finds(make_parts, components, window):
    geometries = list(make_parts(components, PAGE, window=window).geometries.values())
    rng, seen = random.Random(window), set()
    for _ in range(400):
        path = a_path(geometries, rng)
        matched = path[-1].end - PAGE * rng.randint(0, (path[-1].end - path[-1].start) // PAGE - 1)
        for host in (False, True):
            found = reach(geometries, path[-1], matched, host=host)
            assert found == by_the_rule(geometries, path, matched, host)
            seen.add("all" if found == matched else "some" if found else "none")
    assert seen == {"all", "some", "none"}


def a_little_of_everything(tree, rng, ids):
    """Offers for `ids` as a request may have them: pages from some page on, states at some page boundaries."""
    numbers, pages = np.arange(1, 1 + len(ids), dtype=np.int32), len(ids) // PAGE
    values = {}
    for geometry in tree.store.geometries:
        start = 0 if geometry.prefix_closed and rng.random() < 0.7 else rng.randint(0, pages)
        if geometry.at_node_end:
            ends = sorted(rng.sample(range(1, pages + 1), rng.randint(0, min(2, pages)))) + [pages] * (rng.random() < 0.7)
            states = sorted({end * PAGE for end in ends})
            values[geometry.name] = tuple(Segment(end - PAGE, end, numbers[:1]) for end in states)
        elif rng.random() < 0.9:
            values[geometry.name] = (Segment(start * PAGE, len(ids), numbers[start:pages]),)
    return values


@pytest.mark.parametrize("components", SETS)
def test_an_insert_that_sees_at_once_that_all_is_usable_is_right(make_parts, components, monkeypatch):
    decided = {True: 0, False: 0}
    shortly = Insertion._all_usable

    def compared(self, path, matched, total, offers, needs):
        answer = shortly(self, path, matched, total, offers, needs)
        cuts = sorted({at for offer in offers if offer is not None for at in offer.cuts})
        usable = total > 0 and self._length(path, matched, total, offers, cuts) == total
        assert answer == usable
        decided[answer] += 1
        return answer

    monkeypatch.setattr(Insertion, "_all_usable", compared)
    # With full attention alone the device tier has a way of its own.
    rng = random.Random(5)
    for _ in range(60):
        tree = RadixTree(PAGE, list(make_parts(components, PAGE, window=6).geometries.values()), host=True)
        for _ in range(20):
            ids = np.array([rng.randint(0, 1) for _ in range(3)], np.int32).repeat(PAGE)[: PAGE * rng.randint(1, 3)]
            values = a_little_of_everything(tree, rng, ids)
            (tree.insert_host if components == "F" or rng.random() < 0.3 else tree.insert)(ids, values)
            tree.evict(rng.choice(list(tree.store.components)), rng.randint(0, 3), rng.choice(["device", "host"]))
    assert min(decided.values()) > 100


class TestFaultsOfShortWays(PlantedFaultTests):
    faults = (
        Fault(
            "a window is looked at in its last node alone",
            lambda make_parts: test_walking_upwards_finds_what_the_rule_finds(make_parts, "FS", 40),
            Replacement(reach_module, "_lacking", "if each.end <= need:", "if True:"),
        ),
        Fault(
            "what full attention lacks on the host is passed over",
            lambda make_parts: test_walking_upwards_finds_what_the_rule_finds(make_parts, "F", 6),
            Replacement(reach_module, "_below_closed", "not host or each.cells[c].host is None", "not host"),
        ),
        Fault(
            "an offer for the end of a window is enough",
            lambda make_parts, monkeypatch: test_an_insert_that_sees_at_once_that_all_is_usable_is_right(
                make_parts, "FS", monkeypatch
            ),
            Replacement(Insertion, "_all_usable", "if start <= need:", "if start < total:"),
        ),
    )
