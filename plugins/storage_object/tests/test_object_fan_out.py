"""A batch ends at its deadline, whatever its requests do, and takes with it nobody else's threads for longer than they hang."""

import threading

import pytest

from kvcache_storage_object.fan_out import FanOut

LONG = 60.0


@pytest.fixture
def released():
    """Set at the end, so that threads that hang in a test end with it."""
    event = threading.Event()
    yield event
    event.set()


def test_every_item_has_an_answer():
    fan_out = FanOut(3, LONG)
    answers = fan_out.run(range(20), lambda n: 100 // (n % 10))
    assert answers.results == {n: 100 // (n % 10) for n in range(20) if n % 10}
    assert {number: type(error) for number, error in answers.errors.items()} == {0: ZeroDivisionError, 10: ZeroDivisionError}
    assert fan_out.run([], lambda n: n) == ({}, {})
    fan_out.close(LONG)


def test_what_hangs_is_late_and_the_others_are_there(released):
    fan_out = FanOut(2, 0.2)
    answers = fan_out.run(["hangs", "good", "fine"], lambda item: released.wait(LONG) if item == "hangs" else item)
    assert answers.results == {1: "good", 2: "fine"}
    assert {number: type(error) for number, error in answers.errors.items()} == {0: TimeoutError}
    # The thread that is left serves the next batch.
    assert fan_out.run(["next"], str).results == {0: "next"}
    fan_out.close(0.0)


def test_a_panic_in_a_library_is_an_error_and_ends_no_thread():
    class PanicException(BaseException):
        """As libraries in Rust raise it."""

    def panics(item):
        raise PanicException("called unwrap()")

    fan_out = FanOut(1, LONG)
    answers = fan_out.run(["one", "two"], panics)
    assert [repr(error) for error in answers.errors.values()] == ["RuntimeError('PanicException: called unwrap()')"] * 2
    assert fan_out.run(["next"], str).results == {0: "next"}
    fan_out.close(LONG)


def test_a_late_answer_changes_nothing(released):
    fan_out = FanOut(1, 0.2)
    arrived = threading.Event()

    def late(item):
        released.wait(LONG)
        arrived.set()
        return item

    answers = fan_out.run(["late"], late)
    released.set()
    assert arrived.wait(LONG)
    fan_out.close(LONG)
    assert answers.results == {}
    assert list(answers.errors) == [0]


def test_items_of_a_batch_that_is_over_are_not_begun(released):
    fan_out = FanOut(1, 0.2)
    begun = []

    def work(item):
        begun.append(item)
        released.wait(LONG)

    assert len(fan_out.run(["first", "second", "third"], work).errors) == 3
    released.set()
    assert fan_out.run(["last"], str).results == {0: "last"}
    assert begun == ["first"]
    fan_out.close(LONG)


def test_batches_share_the_threads():
    """Eight batches of one item each, of which none ends before all have begun."""
    fan_out, all_begun = FanOut(8, LONG), threading.Barrier(8)
    done = []
    callers = [
        threading.Thread(
            target=lambda n=n: done.append(fan_out.run([n], lambda item: (all_begun.wait(LONG), item)[1])), daemon=True
        )
        for n in range(8)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(LONG)
    assert sorted(answers.results[0] for answers in done) == list(range(8))
    fan_out.close(LONG)


def test_closing_ends_calls_and_threads(released):
    fan_out, begun = FanOut(2, LONG), threading.Event()
    done = []

    def work(item):
        begun.set()
        released.wait(LONG)

    caller = threading.Thread(target=lambda: done.append(fan_out.run(["a", "b", "c"], work)), daemon=True)
    caller.start()
    assert begun.wait(LONG)
    fan_out.close(0.0)
    caller.join(LONG)
    assert [str(error) for error in done[0].errors.values()] == 3 * ["this storage is closed"]
    with pytest.raises(ValueError, match="closed"):
        fan_out.run(["a"], str)
    released.set()
    fan_out.close(LONG)
    assert not any(thread.is_alive() for thread in fan_out._threads)
