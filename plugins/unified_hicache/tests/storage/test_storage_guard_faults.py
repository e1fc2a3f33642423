"""What the guard does while the backend fails, hangs, lies or vanishes: the batch is lost, and nothing else."""

import random
import subprocess
import sys

import pytest

from kvcache_conformance.mutants import Fault, PlantedFaultTests, Replacement
from kvcache_unified_hicache.storage import answers, operation
from kvcache_unified_hicache.storage.breaker import Breaker
from kvcache_unified_hicache.storage.fetch_operation import _Get
from kvcache_unified_hicache.storage.guard import StorageGuard
from kvcache_unified_hicache.storage.store_operation import _Set
from kvcache_unified_hicache.storage.workers import Workers


def raises(error):
    def trick(honest, keys):
        raise error

    return trick


def gives(change):
    """The honest answer, changed."""
    return lambda honest, keys: change(honest())


def once(trick):
    """Misbehave in the first call, and never again."""
    left = [trick]
    return lambda honest, keys: left.pop()(honest, keys) if left else honest()


# -- bad pages ----------------------------------------------------------------------------------------------------------------


def flipped(value):
    return value[:130] + bytes([value[130] ^ 1]) + value[131:]


BAD_PAGES = {
    "flipped byte": (flipped, "checksum"),
    "truncated": (lambda value: value[:-1], "not a page"),
    "trailing junk": (lambda value: value + b"x", "not a page"),
    "empty": (lambda value: b"", "length"),
    "zeros": (lambda value: bytes(len(value)), "not a page"),
}


@pytest.mark.parametrize(("spoil", "reason"), BAD_PAGES.values(), ids=BAD_PAGES)
def test_a_bad_page_is_a_miss_removed_and_repaired(guarded, spoil, reason):
    """B1: the others of its batch are delivered; the next write repairs it."""
    world = guarded()
    world.hold(range(3))
    world.backend.pages[world.key(1)] = spoil(world.backend.pages[world.key(1)])
    assert world.fetch(range(3)) == [world.payload(0), None, world.payload(2)]
    assert world.counters.misses == {f"bad page: {reason}": 1}
    assert world.key(1) not in world.backend.pages
    assert world.observer.removed == [world.key(1)]
    assert world.store([1]) == [True]
    assert world.fetch([1]) == [world.payload(1)]


def test_pages_of_another_frame_are_bad(guarded):
    """B1: another shape with the same size, whole and under the right key."""
    from kvcache_core.contracts.pools import PageArray
    from kvcache_unified_hicache.storage.page_frame import PageFrame

    world = guarded()
    other = PageFrame((PageArray("k", "bfloat16", (12,)), PageArray("v", "uint8", (8,))))
    assert other.payload_bytes == world.frame.payload_bytes
    value = other.new_value()
    other.seal(world.key(1), value)
    world.backend.pages[world.key(1)] = bytes(value)
    assert world.fetch([1]) == [None]
    assert world.counters.misses == {"bad page: other arrays": 1}


def test_answers_in_another_order_are_never_served(guarded):
    """B2: the bytes are whole pages; only the key in the checksum tells them apart."""
    world = guarded()
    world.hold(range(3))
    world.backend.tricks["get"] = gives(lambda values: values[::-1])
    assert world.fetch(range(3)) == [None, world.payload(1), None]
    assert world.counters.misses == {"bad page: checksum": 2}


def test_a_page_that_was_promised_and_is_gone_is_a_miss(guarded):
    """B2."""
    world = guarded()
    world.hold([1, 2])
    assert world.exists([1, 2]) == [True, True]
    del world.backend.pages[world.key(1)]
    assert world.fetch([1, 2]) == [None, world.payload(2)]
    assert world.counters.misses == {"page gone": 1}
    assert world.backend.called("delete") == []


def test_a_miss_is_told_once_the_bad_page_is_removed(guarded):
    """Who hears of it computes and stores the page anew, and a late removal would take that one."""
    world = guarded()
    world.hold([1])
    world.backend.pages[world.key(1)] = b"junk"
    world.backend.tricks["delete"] = world.backend.hang
    assert world.start_fetch([1])
    world.guard.wait(60)
    world.guard.poll()
    world.backend.wait_until_hanging()
    for _ in range(5):  # unpacking has ended long before the last of these
        world.guard.wait(0.02)
        world.guard.poll()
    assert world.answers == []
    world.backend.released.set()
    assert world.settle() == [[None]]


def test_a_bad_page_that_cannot_be_deleted_harms_nothing(guarded):
    world = guarded()
    world.hold([1, 2])
    world.backend.pages[world.key(1)] = b"junk"
    world.backend.tricks["delete"] = raises(PermissionError("no"))
    assert world.fetch([1, 2]) == [None, world.payload(2)]
    assert world.observer.removed == []
    assert world.counters.storage_state == "failing: write: PermissionError: no"
    assert world.fetch([1, 2]) == [None, world.payload(2)]


# -- calls that fail ----------------------------------------------------------------------------------------------------------


class Weird(BaseException):
    """Not even an Exception."""


FAILURES = {
    "raises": raises(OSError("gone")),
    "raises without a text": raises(RuntimeError()),
    "wants to end the program": raises(SystemExit(3)),
    "raises something weird": raises(Weird()),
}
WRONG_ANSWERS = {
    "None": lambda answer: None,
    "too few": lambda answer: answer[:-1],
    "too many": lambda answer: [*answer, answer[0]],
    "a generator": lambda answer: (item for item in answer),
    "a dictionary": lambda answer: dict(enumerate(answer)),
    "numbers": lambda answer: [7] * len(answer),
    "texts": lambda answer: ["yes"] * len(answer),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("method", ["exists", "get", "set"])
def test_a_call_that_fails_costs_its_batch(guarded, method, failure):
    """S1, S9: the worker goes on with the next one."""
    world = guarded(workers=1)
    if method != "set":
        world.hold(range(6))
    world.backend.tricks[method] = once(failure)
    if method == "exists":
        assert world.exists(range(6)) == [False] * 6
        assert world.exists(range(6)) == [True] * 6
        assert world.counters.misses == {"storage error": 6}
    elif method == "get":
        assert world.fetch(range(6)) == [None] * 4 + [world.payload(4), world.payload(5)]
        assert world.counters.misses == {"storage error": 4}
    else:
        assert world.store(range(6)) == [False] * 4 + [True] * 2
        assert sorted(world.backend.pages) == sorted(world.keys([4, 5]))
        assert sorted(world.observer.stored) == sorted(world.keys([4, 5]))
        assert world.counters.bytes_moved == {"store": 2 * world.frame.file_bytes}
    assert world.guard.state.word == "ok"


@pytest.mark.parametrize("change", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
@pytest.mark.parametrize("method", ["exists", "get"])
def test_a_wrong_answer_costs_its_batch(guarded, method, change):
    """B2, S1: a short, an extra or a foreign value says nothing about any page of its call, so none is deleted either."""
    world = guarded(workers=1)
    world.hold(range(6))
    world.backend.tricks[method] = once(gives(change))
    if method == "exists":
        assert world.exists(range(6)) == [False] * 6
        assert world.counters.misses == {"storage answer": 6}
    else:
        assert world.fetch(range(6)) == [None] * 4 + [world.payload(4), world.payload(5)]
        assert world.counters.misses == {"storage answer": 4}
    assert sorted(world.backend.pages) == sorted(world.keys(range(6)))


def test_what_went_wrong_is_in_the_state(guarded):
    world = guarded()
    world.backend.tricks["set"] = raises(OSError(28, "No space left on device"))
    assert world.store([1]) == [False]
    assert world.guard.state.word == "failing"
    assert world.counters.storage_state == "failing: write: OSError: [Errno 28] No space left on device"
    world.backend.tricks.clear()
    assert world.store([1]) == [True]
    assert world.counters.storage_state == "ok"
    assert world.guard.state.last_error.endswith("No space left on device")


@pytest.mark.parametrize("wrong", [[], [b"one too many"] * 3])
def test_assembling_that_fails_stores_nothing(guarded, caplog, wrong):
    """Our own fault, not the backend's: logged, and the backend is not blamed."""
    world = guarded()
    assert world.guard.store(world.keys([1, 2]), 100, lambda: wrong, world.answers.append)
    assert world.settle() == [[False, False]]
    assert world.guard.store(world.keys([1, 2]), 100, lambda: 1 // 0, world.answers.append)
    assert world.settle() == [[False, False]]
    assert world.backend.calls == []
    assert world.guard.state.word == "ok"
    assert "ZeroDivisionError" in caplog.text
    assert world.store([1]) == [True]


@pytest.mark.parametrize(("method", "answer"), [("parts", [None]), ("place", [None]), ("finish", None)])
def test_unpacking_that_fails_gives_nothing(guarded, room, caplog, monkeypatch, method, answer):
    world = guarded()
    world.hold([1])
    broken = room(1, world.frame)
    monkeypatch.setattr(broken, method, lambda *_: 1 // 0)
    assert world.guard.fetch(world.keys([1]), world.frame, broken, world.answers.append)
    assert world.settle() == [answer]
    assert not world.counters.misses
    assert world.guard.state.word == "ok"
    assert "ZeroDivisionError" in caplog.text
    assert world.fetch([1]) == [world.payload(1)]


# -- calls that hang ----------------------------------------------------------------------------------------------------------


def test_a_call_that_hangs_costs_its_batch(guarded):
    """S1: other batches go on, the deadline ends it, and its late answer is nobody's."""
    world = guarded(workers=1)
    world.hold(range(6))
    world.backend.tricks["get"] = once(world.backend.hang)
    assert world.start_fetch(range(6))
    world.backend.wait_until_hanging()
    assert world.guard.poll() == 0
    world.overdue()
    assert world.settle() == [[None] * 4 + [world.payload(4), world.payload(5)]]
    assert world.counters.misses == {"storage timeout": 4}
    assert world.guard.stuck == 1
    world.backend.released.set()
    assert world.fetch(range(6)) == list(map(world.payload, range(6)))


def test_a_write_that_hangs_is_not_called_stored(guarded):
    """Whatever it does later: `stored` is said only by the answer, and this one came too late."""
    world = guarded(workers=1)
    world.backend.tricks["set"] = once(world.backend.hang)
    assert world.start_store(range(6))
    world.backend.wait_until_hanging()
    world.overdue()
    assert world.settle() == [[False] * 4 + [True] * 2]
    world.backend.released.set()
    assert world.exists([5]) == [True]
    assert sorted(world.observer.stored) == sorted(world.keys([4, 5]))


def test_waiting_ends_with_the_deadline(guarded):
    """With a clock that runs: `wait` sleeps until the call is overdue, not until its own end."""
    from kvcache_core.contracts.counters import CacheCounters
    from kvcache_unified_hicache.storage.guard import GuardSettings

    world = guarded()
    world.backend.tricks["exists"] = world.backend.hang
    guard = StorageGuard(world.backend, GuardSettings(timeout=0.05), CacheCounters(), ())
    guard.exists([world.key(1)], world.answers.append)
    while not guard.idle:
        guard.wait(float("inf"))
        guard.poll()
    assert world.answers == [[False]]
    world.backend.released.set()
    world.backend.tricks.clear()
    guard.close(60)


def hang_again(world, n):
    """`n` calls that hang, all at once, and the deadline for them. The breaker never opens here."""
    before = world.guard.stuck
    for number in range(n):
        assert world.start_exists([number])
    world.backend.wait_until_hanging(n)
    world.overdue()
    world.settle()
    assert world.guard.stuck == before + n


def test_hanging_threads_are_replaced_up_to_a_bound(guarded, threads):
    """Then every request is refused at once, until one of them comes back."""
    world = guarded(workers=2, max_stuck=3, failures_to_open=1000)
    world.backend.tricks["exists"] = world.backend.hang
    hang_again(world, 2)
    hang_again(world, 2)
    assert len(threads()) == 5
    hang_again(world, 1)
    assert world.guard.stuck == 5
    assert len(threads()) == 5
    assert not world.start_exists([1])
    assert not world.start_store([1])
    assert world.counters.storage_state == "open: read: OverdueError: no answer within 5 s"
    world.backend.tricks.clear()
    world.backend.released.set()
    while not world.start_exists([1]):
        world.guard.poll()
    assert world.settle() == [[False]]
    assert world.store([1]) == [True]


def test_what_waits_behind_hanging_threads_is_given_up(guarded):
    """No request waits for a thread that may never come back."""
    world = guarded(workers=1, max_stuck=0, failures_to_open=1000)
    world.backend.tricks["exists"] = world.backend.hang
    assert world.start_exists([1])
    world.backend.wait_until_hanging()
    assert world.start_store([2])
    assert world.start_fetch([3])
    world.overdue()
    assert sorted(map(str, world.settle())) == ["None", "[False]", "[False]"]
    assert world.backend.called("set") == []
    world.backend.released.set()


def test_close_ends_while_the_backend_hangs(guarded, threads):
    """S9: in its calls and in its own close."""
    world = guarded()
    world.backend.tricks |= {"set": world.backend.hang, "close": world.backend.hang}
    world.start_store([1])
    world.backend.wait_until_hanging()
    world.guard.close(0.05)
    assert world.backend.closed == 1
    assert len(threads()) == 2
    world.backend.released.set()


def test_a_backend_that_fails_to_close_is_only_logged(guarded, caplog):
    world = guarded()
    world.backend.tricks["close"] = raises(OSError("still busy"))
    world.guard.close(60)
    assert "still busy" in caplog.text


HANGING_PROGRAM = """
import threading
from kvcache_core.contracts.counters import CacheCounters
from kvcache_core.contracts.storage import HiCacheStorage
from kvcache_unified_hicache.storage.guard import GuardSettings, StorageGuard

begun = threading.Event()

class Hangs(HiCacheStorage):
    def exists(self, keys):
        begun.set()
        threading.Event().wait()
    get = set = delete = exists
    def close(self):
        threading.Event().wait()

guard = StorageGuard(Hangs(), GuardSettings(timeout=0.01), CacheCounters(), ())
guard.exists(["0" * 64], print)
assert begun.wait(60)
while not guard.idle:
    guard.wait(60)
    guard.poll()
guard.close(0.01)
"""


def test_a_program_ends_while_the_backend_hangs():
    """A ThreadPoolExecutor's threads would keep the interpreter for ever."""
    run = subprocess.run([sys.executable, "-c", HANGING_PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "[False]\n"


# -- the breaker --------------------------------------------------------------------------------------------------------------


def fail(world, n, method="set"):
    world.backend.tricks[method] = raises(OSError("gone"))
    for _ in range(n):
        assert (world.store([99]) if method == "set" else world.exists([1])) == [False]


def test_a_backend_that_keeps_failing_is_left_alone(guarded, caplog):
    """S1: after three calls in a row nothing is asked any more, and the state says why."""
    world = guarded()
    fail(world, 3)
    assert world.guard.state.word == "open"
    assert world.counters.storage_state == "open: write: OSError: gone"
    assert "left alone" in caplog.text
    calls = len(world.backend.calls)
    assert not world.start_store([2])
    world.guard.poll()
    assert len(world.backend.calls) == calls


def test_a_success_in_between_starts_the_count_again(guarded):
    world = guarded()
    fail(world, 2)
    world.backend.tricks.clear()
    assert world.store([1]) == [True]
    fail(world, 2)
    assert world.guard.state.word == "failing"


def test_a_full_disk_does_not_stop_reading(guarded):
    """S2: writes are refused, reads are not; later writes resume."""
    world = guarded()
    world.hold([7])
    fail(world, 3)
    assert not world.start_store([1])
    assert world.fetch([7]) == [world.payload(7)]
    assert world.guard.state.word == "open"
    world.backend.tricks.clear()
    assert world.probe() == ["set", "delete"]
    assert world.store([1]) == [True]


def test_a_backend_that_cannot_read_may_be_written(guarded):
    world = guarded()
    fail(world, 3, "exists")
    assert not world.start_exists([1])
    assert not world.start_fetch([1])
    assert world.store([1]) == [True]


def test_it_is_tried_again_after_a_while(guarded):
    """One probe, none of the cache's pages; and again after the same while."""
    world = guarded()
    world.hold([7])
    fail(world, 3, "exists")
    world.clock.now += 9.9
    calls = len(world.backend.calls)
    world.guard.poll()
    assert len(world.backend.calls) == calls
    assert world.probe() == ["exists"]
    assert world.guard.state.word == "open"
    assert not world.start_fetch([7])
    world.backend.tricks.clear()
    assert world.probe() == ["exists"]
    assert world.guard.state.word == "ok"
    assert world.counters.storage_state == "ok"
    assert world.fetch([7]) == [world.payload(7)]


def test_nothing_else_is_asked_while_a_probe_is_out(guarded):
    world = guarded()
    fail(world, 3, "exists")
    world.backend.tricks["exists"] = world.backend.hang
    world.clock.now += 10
    world.guard.poll()
    world.backend.wait_until_hanging()
    assert world.guard.state.word == "retrying"
    assert world.counters.storage_state == "retrying: read: OSError: gone"
    assert not world.start_exists([1])
    assert world.guard.idle
    calls = len(world.backend.calls)
    world.guard.poll()
    assert len(world.backend.calls) == calls
    world.overdue()
    world.guard.poll()
    assert world.guard.state.word == "open"
    world.backend.released.set()


def test_a_probe_leaves_nothing_behind(guarded):
    world = guarded()
    fail(world, 3)
    world.backend.tricks.clear()
    world.probe()
    assert world.backend.pages == {}
    assert world.observer.stored == {}
    assert world.observer.removed == []


def test_what_waits_when_the_breaker_opens_is_given_up(guarded):
    """Not called one after another, each until its deadline; what reads goes on."""
    world = guarded(workers=1)
    world.hold([9])
    world.backend.tricks["set"] = raises(OSError("gone"))
    assert world.start_store(range(40))
    assert world.start_fetch([9])
    answers = world.settle()
    assert [False] * 40 in answers
    assert [world.payload(9)] in answers
    assert world.guard.state.word == "open"


def test_waiting_callers_are_given_up_without_a_call(guarded):
    """The first three hang; the deadline of the others must not be waited for as well."""
    world = guarded(workers=3, max_stuck=8)
    world.backend.tricks["exists"] = world.backend.hang
    for number in range(8):
        assert world.start_exists([number])
    world.backend.wait_until_hanging(3)
    world.overdue()
    assert world.settle() == [[False]] * 8
    assert world.guard.state.word == "open"
    assert world.counters.misses["storage timeout"] == 3
    assert sum(world.counters.misses.values()) == 8
    world.backend.released.set()


def test_a_late_answer_does_not_close_an_open_breaker(guarded):
    """It was asked before the calls that failed."""
    world = guarded(workers=4)
    world.backend.tricks["exists"] = once(world.backend.hang)
    assert world.start_exists([1])
    world.backend.wait_until_hanging()
    world.backend.tricks["exists"] = raises(OSError("gone"))
    for _ in range(3):
        world.start_exists([2])
        while len(world.answers) < 1:
            world.guard.poll()
        world.answers.clear()
    assert world.guard.state.word == "open"
    world.backend.released.set()
    assert world.settle() == [[False]]
    assert world.guard.state.word == "open"


# -- all at once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_every_request_is_answered_once_and_nothing_wrong_is_served(guarded, room, reads_into, seed):
    """Random requests against a backend that does anything: B2, S1, S9, S10 together. Asserted: exactly one answer each, only
    right pages, no byte left in flight, and that enough went well and wrong for that to mean something."""
    owner, backend = random.Random(seed), random.Random(seed + 1000)
    bound = 40 * GuardedFrame.file_bytes(guarded)
    world = guarded(reads_into() if seed % 2 else None, workers=1, max_bytes_in_flight=bound, failures_to_open=4, max_stuck=400)

    def anything(honest, keys):
        match backend.randrange(14):
            case 0:
                raise OSError("gone")
            case 1:
                answer = honest()
                return answer[:-1] if answer else answer
            case 2:
                answer = honest()
                return answer[::-1] if answer else answer
            case 3:
                answer = honest()
                return [flipped(value) if type(value) is bytes else value for value in answer or []] or answer
            case 4:
                return world.backend.hang(honest, keys)
        return honest()

    world.backend.tricks |= dict.fromkeys(("exists", "get", "get_into", "set", "delete"), anything)
    asked, answered, refused = 0, [], 0

    for _ in range(300):
        numbers = owner.sample(range(40), owner.randint(0, 12))

        def on_done(answer, numbers=numbers):
            answered.append((numbers, answer))

        def make(numbers=numbers):
            return [world.value(number) for number in numbers]

        keys = world.keys(numbers)
        match owner.randrange(4):
            case 0:
                taken = world.guard.exists(keys, on_done)
            case 1:
                taken = world.guard.store(keys, world.frame.file_bytes, make, on_done)
            case _:
                taken = world.guard.fetch(keys, world.frame, room(len(keys), world.frame, owner.random() < 0.5), on_done)
        asked += taken
        refused += not taken
        while owner.random() < 0.6 and not world.guard.idle and not world.backend.hanging.acquire(blocking=False):
            world.guard.wait(0.005)
            world.guard.poll()
        if owner.random() < 0.3:
            world.clock.now += owner.choice([0.1, 5.0, 10.0])
        world.guard.poll()
    world.backend.released.set()
    world.backend.tricks.clear()
    world.clock.now += 5.0
    world.settle()
    assert len(answered) == asked
    right = 0
    for numbers, answer in answered:
        assert len(answer) == len(numbers)
        for number, item in zip(numbers, answer, strict=True):
            assert item in (True, False, None, world.payload(number))
            right += type(item) is bytes
    assert right > 20
    assert refused > 5
    assert sum(world.counters.misses.values()) > 50


class GuardedFrame:
    @staticmethod
    def file_bytes(guarded):
        return guarded().frame.file_bytes


def bad_pages_are_removed(guarded):
    test_a_bad_page_is_a_miss_removed_and_repaired(guarded, flipped, "checksum")


def a_short_answer_costs_its_batch(guarded):
    test_a_wrong_answer_costs_its_batch(guarded, "get", WRONG_ANSWERS["too few"])


def a_foreign_answer_costs_its_batch(guarded):
    test_a_wrong_answer_costs_its_batch(guarded, "exists", WRONG_ANSWERS["numbers"])


def a_failing_write_costs_its_batch(guarded):
    test_a_call_that_fails_costs_its_batch(guarded, "set", FAILURES["raises"])


class TestFaultsOfFailing(PlantedFaultTests):
    faults = (
        Fault(
            "bad pages stay",
            bad_pages_are_removed,
            Replacement(_Get, "account", "return [key for key, _ in read.bad]", "return []"),
        ),
        Fault(
            "told before the removal",
            test_a_miss_is_told_once_the_bad_page_is_removed,
            Replacement(StorageGuard, "_finish", "or operation in self._removals.values()", ""),
        ),
        Fault(
            "pages are not verified",
            test_answers_in_another_order_are_never_served,
            Replacement(
                _Get,
                "_read_values",
                "self._fetch.frame.open(key, value)",
                "memoryview(value)[128 : 128 + self._fetch.frame.payload_bytes]",
            ),
        ),
        Fault(
            "a short answer is filled up",
            a_short_answer_costs_its_batch,
            Replacement(answers, "_one_each", "if len(items) != n:", "items = [*items, *[None] * n][:n]\n    if not items:"),
        ),
        Fault(
            "any truth is an answer",
            a_foreign_answer_costs_its_batch,
            Replacement(operation, "checked_flags", "type(flag) is not bool", "flag is None"),
        ),
        Fault(
            "stored without an answer",
            a_failing_write_costs_its_batch,
            Replacement(
                _Set,
                "account",
                "if outcome.error is None:",
                "self._store.taken = [True] * len(self._keys)\n    if outcome.error is None:",
            ),
        ),
        Fault(
            "the breaker never opens",
            test_a_backend_that_keeps_failing_is_left_alone,
            Replacement(Breaker, "failed", "Word.OPEN if self._failures >= self._limit else Word.FAILING", "Word.FAILING"),
        ),
        Fault(
            "one breaker for both ways",
            test_a_full_disk_does_not_stop_reading,
            Replacement(
                StorageGuard, "refuses", "not self._breakers[side].closed", "not all(b.closed for b in self._breakers.values())"
            ),
        ),
        Fault(
            "an open breaker is never tried again",
            test_it_is_tried_again_after_a_while,
            Replacement(StorageGuard, "_probe", "breaker.probe_due_in == 0", "False"),
        ),
        Fault(
            "probes at once",
            test_it_is_tried_again_after_a_while,
            Replacement(StorageGuard, "_probe", "breaker.probe_due_in == 0", "breaker.probe_due_in is not None"),
        ),
        Fault(
            "late answers close it",
            test_a_late_answer_does_not_close_an_open_breaker,
            Replacement(Breaker, "succeeded", "if self.closed:", "if True:"),
        ),
        Fault(
            "hanging threads are replaced without a bound",
            test_hanging_threads_are_replaced_up_to_a_bound,
            Replacement(Workers, "_abandon_overdue", "len(self._stuck) <= self._max_stuck", "True"),
        ),
    )
