"""Traps of what arrives from storage (T23, T24, B7, S9): how much of it is of use, one directed test each, and their faults."""

import numpy as np

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.page_content import page_content
from kvcache_conformance.scenario_steps import claim, compute, evict, find, finish, ids, load
from kvcache_conformance.stored_scenarios import after_restart, host_len, prefetch, script_of
from kvcache_unified_hicache.attaching import Attaching
from kvcache_unified_hicache.fetches import Fetches
from kvcache_unified_hicache.node_digests import NodeDigests
from kvcache_unified_hicache.prefix_pages import PrefixPages


def test_a_prompt_comes_back_after_a_restart(stored):
    world = after_restart(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3, 4))
    world.settle()
    assert started.ticket.ok and started.ticket.span == (0, 12)
    assert world.cache.counters.storage_loaded_tokens == 12
    loaded = load(world, ids(1, 2, 3))
    world.settle()
    assert claim(world, loaded)
    finish(world)


def test_a_beginning_that_went_meanwhile(stored):
    """T24: what arrives then is of no use, and leaves nothing behind."""
    world = after_restart(stored, ids(1, 2, 3, 4))
    prefetch(world, ids(1, 2))
    world.settle()
    started = prefetch(world, ids(1, 2, 3, 4))
    world.turn()
    world.evict_host("full", 64)
    world.verify()
    world.settle()
    assert not started.ticket.ok and started.ticket.span == (0, 0)
    assert host_len(world, ids(1, 2, 3, 4)) == 0
    assert world.cache.size("full", "host").free == 64
    finish(world)


def test_the_same_is_computed_while_it_is_fetched(stored):
    world = after_restart(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    world.turn()
    compute(world, ids(1, 2, 9))
    world.settle()
    assert started.ticket.ok and started.ticket.span == (8, 12)
    assert find(world, ids(1, 2, 3)).result[1:3] == (8, 12)
    finish(world)


def test_a_hole_in_the_host_is_filled(stored):
    """Between what memory has and what comes lies a page that is on its way out of the device."""
    world = after_restart(stored, ids(1, 2, 3, 4))
    compute(world, ids(1, 2))
    world.script.hold_back()
    evict(world)
    started = prefetch(world, ids(1, 2, 3, 4))
    for _ in range(4):
        world.turn()
        world.verify()
    assert started.ticket.done and host_len(world, ids(1, 2, 3, 4)) == 16
    finish(world)


def test_a_reset_makes_every_arrival_a_stranger(stored):
    """S9."""
    world = after_restart(stored, ids(1, 2, 3))
    started = prefetch(world, ids(1, 2, 3))
    world.turn()
    script_of(world).hold_back()
    again = prefetch(world, ids(1, 2, 3))
    assert world.checked.reset()
    assert started.ticket.done and again.ticket.done and not started.ticket.ok
    assert world.cache.size("full", "host").in_flight == 3
    world.verify()
    late = prefetch(world, ids(1, 2, 3))
    script_of(world).allowed = 1
    script_of(world).picks.append(2)  # its question is answered while the old pages are on their way
    world.turn()
    world.settle()
    assert late.ticket.ok and world.cache.size("full", "host").free == 61
    finish(world)


def test_the_length_is_chosen_over_all_components(stored):
    """B7, T23: the storage lacks the newest state, or one page of a window, and the usable prefix ends before it."""
    components = (FULL, SWA, RECURRENT)
    prompt = ids(1, 2, 3, 4, 5, 6)
    world = after_restart(stored, prompt[:12], prompt, components=components)
    script = script_of(world)
    for component, tokens, expected in (("recurrent", prompt, 12), ("swa", prompt[:12], 0)):
        payload = page_content((), component, np.asarray(tokens, np.int32).tobytes()).tobytes()
        [key] = [key for key, kept in script._payload_of.items() if kept == payload]
        del script.pages[key]
        prefetch(world, prompt)
        world.settle()
        assert host_len(world, prompt) == expected
        for name in ("full", "swa", "recurrent"):
            world.evict_host(name, 64)
    # What the storage still promises may not come: the length is chosen again.
    assert world.cache.size("full", "host").free == 64
    finish(world)


def test_only_what_is_needed_is_fetched(stored):
    """Of a window its pages, of a state the last."""
    prompt = ids(1, 2, 3, 4, 5, 6)
    world = after_restart(stored, prompt, components=(FULL, SWA, RECURRENT))
    prefetch(world, prompt)
    world.settle()
    resident = world.ledger.claims.resident
    assert {name: len(pages) for name, pages in resident.items()} == {"full": 6, "swa": 2, "recurrent": 1}
    finish(world)


def test_what_arrives_decides_and_not_what_was_promised(stored):
    """T23 for windows: a page of the window does not come, so the longest usable prefix is another."""
    prompt = ids(1, 2, 3, 4, 5, 6)
    world = after_restart(stored, prompt, components=(FULL, SWA))
    started = prefetch(world, prompt)
    world.turn()
    script_of(world).fates.extend([True] * 6 + [False])
    world.settle()
    assert not started.ticket.ok and host_len(world, prompt) == 0
    assert world.cache.size("swa", "host").free == world.cache.size("full", "host").free == 64
    finish(world)


def test_a_prompt_that_leaves_a_node_in_its_middle(stored):
    world = after_restart(stored, ids(1, 2, 3), ids(1, 5, 6))
    prefetch(world, ids(1, 2, 3))
    world.settle()
    started = prefetch(world, ids(1, 5, 6))
    world.settle()
    assert started.ticket.span == (4, 12)
    finish(world)


class TestFaultsOfArrivals(PlantedFaultTests):
    faults = (
        Fault(
            "T23: the length is what was promised",
            test_what_arrives_decides_and_not_what_was_promised,
            Replacement(
                Attaching,
                "attach",
                "length = pages.usable(either(pages.resident(), arrived), fetch.length)",
                "length = fetch.length",
            ),
        ),
        Fault(
            "B7: full attention decides alone",
            test_the_length_is_chosen_over_all_components,
            Replacement(
                PrefixPages,
                "usable",
                "longest_usable(self._geometries, self.ends[:n], [flags[:n] for flags in there])",
                "longest_usable(self._geometries[:1], self.ends[:n], [flags[:n] for flags in there[:1]])",
            ),
        ),
        Fault(
            "T24: residency is what it was when the fetch was planned",
            test_a_beginning_that_went_meanwhile,
            Replacement(Attaching, "attach", "either(pages.resident(), arrived)", "[[True] * pages.n for _ in arrived]"),
        ),
        Fault(
            "S9: a reset lets late pages in",
            test_a_reset_makes_every_arrival_a_stranger,
            Replacement(Fetches, "forget", "fetch.forgotten = True", "pass"),
        ),
        Fault(
            "S9: a reset loses slots",
            test_a_reset_makes_every_arrival_a_stranger,
            Replacement(Fetches, "_end", "self._free(request.c, request.slots)", "pass"),
        ),
        Fault(
            "S9: after a reset prompts join what was forgotten",
            test_a_reset_makes_every_arrival_a_stranger,
            Replacement(Fetches, "forget", "self._coming.clear()", "pass"),
        ),
        Fault(
            "what is fetched besides is not freed",
            test_the_same_is_computed_while_it_is_fetched,
            Replacement(Attaching, "attach", "if slot not in taken[request.c]", "if not taken[request.c]"),
        ),
        Fault(
            "a prompt's digests end at the node, not at the match",
            test_a_prompt_that_leaves_a_node_in_its_middle,
            Replacement(NodeDigests, "of_prompt", "pages[: len(pages) - cut]", "pages"),
        ),
    )
