"""Faults of a host, not of a cache: the kit's own requests do something wrong, and the directed tests notice."""

from kvcache_conformance.geometries import FULL, RECURRENT, SWA
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.prefix_cache_tests import BasePrefixCacheTests
from kvcache_conformance.request_model import RequestModel
from kvcache_conformance.toy_cache import ToyCache


class AllComponents(BasePrefixCacheTests):
    """The kit over a healthy cache; pytest does not collect it."""

    components = (FULL, SWA, RECURRENT)

    def make_cache(self, host):
        return ToyCache(host.page_size, host.geometries, host.allocators)


def what_ends_inside_a_page():
    AllComponents().test_what_ends_inside_a_page_is_found_up_to_the_page_before()


def requests_in_every_state():
    AllComponents().test_a_request_can_be_aborted_in_every_state()


def two_requests_at_the_same_time():
    AllComponents().test_two_requests_compute_the_same_prefix_at_the_same_time()


def test_the_healthy_host_passes():
    what_ends_inside_a_page()
    requests_in_every_state()
    two_requests_at_the_same_time()


class TestFaultsOfHosts(PlantedFaultTests):
    faults = (
        Fault(
            "T2: window frees from the unaligned position",
            what_ends_inside_a_page,
            Replacement(RequestModel, "_leave_windows", "floor_page(self.computed, self._page)", "self.computed"),
        ),
        Fault(
            "L5: an abort keeps the lock",
            requests_in_every_state,
            Replacement(RequestModel, "abort", "self.world.unlock(self._held)", "pass"),
        ),
        Fault(
            "L5: an abort forgets its pages",
            requests_in_every_state,
            Replacement(RequestModel, "abort", "self._free_own()", "pass"),
        ),
        Fault(
            "L7: duplicates are freed while the page table points at them",
            two_requests_at_the_same_time,
            Replacement(RequestModel, "chunk_done", "self._remap(held)", "pass"),
        ),
    )
