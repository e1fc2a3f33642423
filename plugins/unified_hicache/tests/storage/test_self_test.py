"""The start-up self-test: every way in which a backend can break its contract at once fails the start, with the step's name."""

import pytest

from kvcache_conformance.backend_tricks import gives, raises
from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_conformance.storage_processes import StorageOpener
from kvcache_core.contracts.storage import NotAllStoredError, StorageScope
from kvcache_core.errors import StorageError
from kvcache_unified_hicache.storage.self_test import _SelfTest, self_test


def test_a_backend_that_works_passes_and_keeps_nothing(guarded):
    backend = guarded().backend
    steps = self_test(backend, 60)
    asked = ["exists, before", "set", "exists", "get", "get_into", "delete", "exists, after", "get, after"]
    assert [step.name for step in steps] == asked
    assert all(step.seconds > 0 for step in steps)
    assert backend.pages == {}


def test_it_uses_other_keys_every_time(guarded):
    """Two processes that start on one store must not meet."""
    backend = guarded().backend
    self_test(backend, 60)
    self_test(backend, 60)
    first, second = backend.called("set")
    assert set(first).isdisjoint(second)


def test_the_smallest_limit_has_room_for_it(tmp_path):
    """A limit that a backend takes must not fail at the start."""
    options = {"path": str(tmp_path), "max_bytes": 2048, "min_free_bytes": 0}
    backend = StorageOpener("file", options, StorageScope("model", 16)).open()
    assert self_test(backend, 60)
    backend.close()


def test_where_nothing_may_be_written_it_only_looks(guarded):
    backend = guarded().backend
    assert [step.name for step in self_test(backend, 60, read_only=True)] == ["exists", "get"]
    assert not backend.called("set") and not backend.called("delete")
    backend.tricks["exists"] = raises(PermissionError(13, "Permission denied"))
    with pytest.raises(StorageError, match="'exists': PermissionError"):
        self_test(backend, 60, read_only=True)


READ_WRONG = {
    "another length": (
        gives(lambda lengths: [length and length + 1 for length in lengths]),
        "was just stored, and it answered 1",
    ),
    "nothing": (gives(lambda lengths: [None] * len(lengths)), "was just stored, and it answered None"),
    "too few answers": (gives(lambda lengths: lengths[:1]), "'get_into': BadAnswerError: it gave 1 answers for 2"),
}


@pytest.mark.parametrize(("trick", "text"), READ_WRONG.values(), ids=READ_WRONG)
def test_pages_read_to_their_places_are_looked_at(guarded, reads_into, trick, text):
    backend = guarded(reads_into()).backend
    assert self_test(backend, 60)
    backend.tricks["get_into"] = trick
    with pytest.raises(StorageError, match=text):
        self_test(backend, 60)


def test_bytes_that_were_never_written_are_found(guarded, reads_into):
    backend = guarded(reads_into()).backend
    backend.tricks["get_into"] = lambda honest, keys: [len(backend.pages[key]) for key in keys]
    with pytest.raises(StorageError, match="'get_into': BadPageError"):
        self_test(backend, 60)


BREACHES = {
    "cannot write": ("set", raises(PermissionError(13, "Permission denied")), "'set': PermissionError"),
    "writes nothing": ("set", lambda honest, keys: None, r"'exists': it answered \[False, False\]"),
    "ends the program": ("set", raises(SystemExit(1)), "'set': SystemExit"),
    "sees everything": ("exists", lambda honest, keys: [True] * len(keys), "'exists, before': it answered"),
    "sees nothing": ("exists", lambda honest, keys: [False] * len(keys), "'exists': it answered"),
    "answers too little": (
        "exists",
        gives(lambda flags: flags[:1]),
        "'exists, before': BadAnswerError: it gave 1 answers for 2",
    ),
    "answers in numbers": ("exists", gives(lambda flags: list(map(int, flags))), "'exists, before': BadAnswerError"),
    "gives nothing": ("get", lambda honest, keys: [None] * len(keys), "'get': a page that was just stored is not there"),
    "gives another order": ("get", gives(lambda values: values[::-1]), "'get': BadPageError"),
    "gives broken pages": ("get", gives(lambda values: [value and value[:-1] for value in values]), "'get': BadPageError"),
    "gives texts": ("get", gives(lambda values: [str(value) for value in values]), "'get': BadAnswerError"),
    "cannot delete": ("delete", raises(OSError("no")), "'delete': OSError: no"),
    "deletes nothing": ("delete", lambda honest, keys: None, "'exists, after': it answered"),
}


@pytest.mark.parametrize(("method", "trick", "text"), BREACHES.values(), ids=BREACHES)
def test_a_breach_fails_the_start(guarded, method, trick, text):
    """C5: with the step, the reason, the field that chose the backend, and what to do."""
    backend = guarded().backend
    backend.tricks[method] = trick
    with pytest.raises(StorageError, match=text) as caught:
        self_test(backend, 60)
    assert caught.value.path == ("hicache", "storage")
    assert "kvcache storage check" in str(caught.value)


@pytest.mark.parametrize("method", ["exists", "get"])
def test_what_it_stored_is_deleted_when_it_fails(guarded, method):
    backend = guarded().backend
    honest_calls = [lambda honest, keys: honest()] if method == "exists" else []

    def fails_later(honest, keys):
        if honest_calls:
            return honest_calls.pop()(honest, keys)
        raise OSError("gone")

    backend.tricks[method] = fails_later
    with pytest.raises(StorageError):
        self_test(backend, 60)
    assert backend.pages == {}
    assert backend.called("set")


def test_a_backend_that_hangs_fails_the_start(guarded):
    world = guarded()
    world.backend.tricks["set"] = world.backend.hang
    with pytest.raises(StorageError, match=r"'set': no answer within 0\.01 s"):
        self_test(world.backend, 0.01)
    world.backend.released.set()


def lose_a_part(backend, first: int, then: int) -> None:
    """As a store that has lost one server of several: of the two pages `first` are that one's, `then` of all later ones. They
    cannot be stored, found or deleted."""
    lost: set[str] = set()

    def sets(honest, keys):
        gone = keys[: then if lost else first]
        honest()
        for key in gone:
            del backend.pages[key]
        lost.update(gone)
        raise NotAllStoredError(f"{len(gone)} of {len(keys)} pages were not stored: a server is gone", gone)

    def deletes(honest, keys):
        if lost.intersection(keys):
            raise OSError("a server is gone")
        honest()

    backend.tricks |= {"set": sets, "delete": deletes}


@pytest.mark.parametrize("first", [1, 2])
def test_one_server_of_several_that_is_gone_does_not_fail_the_start(guarded, caplog, first):
    """Also where both pages are of that one at first."""
    backend = guarded().backend
    lose_a_part(backend, first, then=1)
    assert len(self_test(backend, 60)) == 8
    assert len(backend.called("set")) == first
    assert backend.pages == {}
    assert "works in part: 1 of 2 pages were not stored: a server is gone" in caplog.text


def test_a_store_that_takes_nothing_fails_the_start(guarded):
    backend = guarded().backend
    lose_a_part(backend, 2, then=2)
    with pytest.raises(StorageError, match="'set': NotAllStoredError: 2 of 2 pages were not stored"):
        self_test(backend, 60)


def a_backend_in_another_order_fails(guarded):
    test_a_breach_fails_the_start(guarded, *BREACHES["gives another order"])


def a_backend_that_sees_everything_fails(guarded):
    test_a_breach_fails_the_start(guarded, *BREACHES["sees everything"])


class TestFaultsOfTheSelfTest(PlantedFaultTests):
    faults = (
        Fault(
            "values not looked at",
            a_backend_in_another_order_fails,
            Replacement(_SelfTest, "run", "frame.open(key, value)", "len(value)"),
        ),
        Fault(
            "pages read to their places not looked at",
            test_bytes_that_were_never_written_are_found,
            Replacement(_SelfTest, "run", "frame.open(key, buffer)", "pass"),
        ),
        Fault(
            "answers not looked at",
            a_backend_that_sees_everything_fails,
            Replacement(_SelfTest, "_expect", "if answer != expected:", "if not answer:"),
        ),
        Fault(
            "one server of several is all of them",
            lambda guarded, caplog: test_one_server_of_several_that_is_gone_does_not_fail_the_start(guarded, caplog, 1),
            Replacement(_SelfTest, "_store", "len(self._lost) == len(self._keys)", "self._lost"),
        ),
        Fault(
            "nothing cleaned up",
            lambda guarded: test_what_it_stored_is_deleted_when_it_fails(guarded, "get"),
            Replacement(_SelfTest, "clean_up", "thread.start()", "return"),
        ),
    )
