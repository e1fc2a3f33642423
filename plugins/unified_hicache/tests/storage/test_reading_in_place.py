"""Pages that a backend reads straight to their places: they are verified there, and what is wrong is read again as a value."""

import pytest

from kvcache_conformance.backend_tricks import flipped
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_core.contracts.pools import PageArray
from kvcache_unified_hicache.storage.fetch_operation import _Get
from kvcache_unified_hicache.storage.page_frame import PageFrame


def fetched(world, room, numbers):
    """The answer to a request whose pages may be read in place, and the numbers of those that had to be placed."""
    keys = world.keys(numbers)
    place = room(len(keys), world.frame, in_place=True)
    assert world.guard.fetch(keys, world.frame, place, world.answers.append)
    [answer] = world.settle()
    return answer, sorted(place.placed)


def test_pages_are_read_to_their_places(guarded, room, reads_into):
    world = guarded(reads_into())
    world.hold(range(9))
    answer, placed = fetched(world, room, [7, 0, 11, 8, 3, 1])
    assert answer == [world.payload(7), world.payload(0), None, *map(world.payload, [8, 3, 1])]
    assert placed == [] and world.backend.called("get") == []
    assert sorted(map(len, world.backend.called("get_into"))) == [2, 4]
    assert world.counters.misses == {"page gone": 1}
    assert world.counters.bytes_moved == {"fetch": 5 * world.frame.file_bytes}


def test_a_backend_that_cannot_is_asked_for_values(guarded, room):
    world = guarded()
    world.hold(range(3))
    assert fetched(world, room, range(4)) == ([*map(world.payload, range(3)), None], [0, 1, 2])


SPOILT = {
    "checksum": flipped,
    "length": lambda value: value[:140] + value[141:],
    "header": lambda value: value[:20] + b"\1" + value[21:],
    "not a page": lambda value: value + b"one byte more",
}


@pytest.mark.parametrize("reason", SPOILT)
def test_what_does_not_verify_in_place_is_judged_as_a_value(guarded, room, reads_into, reason):
    """B2: with the same reason, removed and repaired as if it had been read so at first."""
    world = guarded(reads_into())
    world.hold(range(3))
    world.backend.pages[world.key(1)] = SPOILT[reason](world.backend.pages[world.key(1)])
    assert fetched(world, room, range(3)) == ([world.payload(0), None, world.payload(2)], [])
    assert world.counters.misses == {f"bad page: {reason}": 1}
    assert world.backend.called("get") == world.backend.called("delete") == [[world.key(1)]]
    assert world.exists([1]) == [False]


def test_another_page_in_its_place_is_found(guarded, room, reads_into):
    world = guarded(reads_into())
    world.hold(range(2))
    pages = world.backend.pages
    pages[world.key(0)], pages[world.key(1)] = pages[world.key(1)], pages[world.key(0)]
    assert fetched(world, room, range(2)) == ([None, None], [])
    assert world.counters.misses == {"bad page: checksum": 2}


def test_a_page_of_other_arrays_and_the_same_size_is_found(guarded, room, reads_into):
    """K: sealed under this very key, whole, and as long as ours."""
    world = guarded(reads_into())
    other = PageFrame((PageArray("w", "bfloat16", (10,)), PageArray("v", "uint8", (12,))))
    value = other.new_value()
    other.seal(world.key(1), value)
    assert len(value) == world.frame.file_bytes
    world.backend.pages[world.key(1)] = bytes(value)
    assert fetched(world, room, [1]) == ([None], [])
    assert world.counters.misses == {"bad page: other arrays": 1}


def test_a_page_that_is_whole_when_it_is_read_again_is_used(guarded, room, reads_into, caplog):
    """It was written anew meanwhile, or the backend always does this and reads all twice: said once."""
    world = guarded(reads_into())
    world.hold(range(2))

    def torn(honest, keys):
        whole = world.backend.pages[world.key(1)]
        world.backend.pages[world.key(1)] = flipped(whole)
        answer = honest()
        world.backend.pages[world.key(1)] = whole
        return answer

    world.backend.tricks["get_into"] = torn
    assert fetched(world, room, range(2)) == ([world.payload(0), world.payload(1)], [1])
    assert not world.counters.misses
    assert fetched(world, room, range(2)) == ([world.payload(0), world.payload(1)], [1])
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and said[0].endswith("get_into gave 1 pages that do not verify, and get gave them whole"), said


@pytest.mark.parametrize("wrong", [[], [1.5], [True], 7, ["1"]])
def test_a_wrong_answer_costs_its_batch(guarded, room, reads_into, wrong):
    """B1."""
    world = guarded(reads_into())
    world.hold([1])
    world.backend.tricks["get_into"] = lambda honest, keys: wrong
    assert fetched(world, room, [1]) == ([None], [])
    assert world.counters.misses == {"storage answer": 1}
    assert world.guard.state.word == "failing"


def test_a_backend_that_only_says_so_is_found_out(guarded, room, reads_into):
    """It answers with the right length, and wrote nothing."""
    world = guarded(reads_into())
    world.hold([1])
    world.backend.tricks["get_into"] = lambda honest, keys: [world.frame.file_bytes]
    assert fetched(world, room, [1]) == ([world.payload(1)], [0])


def test_what_is_written_after_the_deadline_is_nobodys(guarded, room, reads_into):
    """S1: the call hangs, its pages are missed, and that it goes on later changes no answer."""
    world = guarded(reads_into(), workers=1)
    world.hold(range(6))
    hanging = [world.backend.hang]
    world.backend.tricks["get_into"] = lambda honest, keys: hanging.pop()(honest, keys) if hanging else honest()
    keys = world.keys(range(6))
    assert world.guard.fetch(keys, world.frame, room(6, world.frame, in_place=True), world.answers.append)
    world.backend.wait_until_hanging()
    world.overdue()
    expected = [None] * 4 + [world.payload(4), world.payload(5)]
    assert world.settle() == [expected]
    world.backend.released.set()
    assert fetched(world, room, range(6)) == ([*map(world.payload, range(6))], [])
    assert world.counters.misses == {"storage timeout": 4}


def spoilt_in_place(guarded, room, reads_into):
    test_what_does_not_verify_in_place_is_judged_as_a_value(guarded, room, reads_into, "checksum")


def longer(guarded, room, reads_into):
    test_what_does_not_verify_in_place_is_judged_as_a_value(guarded, room, reads_into, "not a page")


def wrong_type(guarded, room, reads_into):
    test_a_wrong_answer_costs_its_batch(guarded, room, reads_into, [True])


class TestFaultsOfReadingInPlace(PlantedFaultTests):
    faults = (
        Fault(
            "B2: pages in place are not verified",
            spoilt_in_place,
            Replacement(_Get, "_read_in_place", "frame.holds(self._keys[i], pages[i], nbytes)", "True"),
        ),
        Fault(
            "B2: the checksum leaves out what lies in place",
            spoilt_in_place,
            Replacement(PageFrame, "holds", "first, *payload, last[:-CHECKSUM_BYTES])", "first, last[:-CHECKSUM_BYTES])"),
        ),
        Fault(
            "the key is left out",
            test_another_page_in_its_place_is_found,
            Replacement(PageFrame, "holds", "bytes(last[-CHECKSUM_BYTES:]) == _checksum(key", "bool(key"),
        ),
        Fault(
            "the table is not compared",
            test_a_page_of_other_arrays_and_the_same_size_is_found,
            Replacement(PageFrame, "holds", "or bytes(last[:-CHECKSUM_BYTES]) != self._trailer", ""),
        ),
        Fault(
            "the length is not compared",
            longer,
            Replacement(PageFrame, "holds", "nbytes != self.file_bytes or", ""),
        ),
        Fault(
            "what does not verify is not read again",
            test_a_page_that_is_whole_when_it_is_read_again_is_used,
            Replacement(_Get, "_read_in_place", "read.again.append(i)", "pass"),
        ),
        Fault(
            "answers are not checked",
            wrong_type,
            Replacement(_Get, "_read_in_place", "checked_lengths(answer, len(every))", "answer"),
        ),
    )
