"""One call at a time, each with a deadline; a call that hangs keeps the others from calling and from waiting for ever."""

import threading

import pytest

from kvcache_storage_mooncake.lane import Lane

LONG = 60.0
SHORT = 0.2


@pytest.fixture
def released():
    """Set at the end, so that what hangs in a test ends with it."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def lane():
    lane = Lane("somebody")
    yield lane
    lane.end()


def test_calls_give_what_their_work_gives(lane):
    with lane.turn(LONG) as turn:
        assert turn.call(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            turn.call(lambda: 1 // 0)
        assert turn.call(threading.get_ident) == turn.call(threading.get_ident) != threading.get_ident()


def test_turns_do_not_overlap(lane):
    inside, most = [], []

    def work():
        for _ in range(50):
            with lane.turn(LONG) as turn:
                inside.append(1)
                turn.call(lambda: most.append(len(inside)))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert most == [1] * 200


def test_a_call_that_hangs_is_given_up_and_keeps_the_lane_until_it_ends(lane, released):
    with pytest.raises(TimeoutError, match="no answer from somebody"), lane.turn(SHORT) as turn:
        turn.call(lambda: released.wait(LONG))
    with pytest.raises(TimeoutError, match="earlier calls to somebody"), lane.turn(SHORT):
        raise AssertionError("the lane is not free")
    released.set()
    with lane.turn(LONG) as turn:
        assert turn.call(lambda: "free again") == "free again"


def test_a_turn_has_one_deadline_for_all_its_calls(lane, released):
    with lane.turn(SHORT) as turn:
        with pytest.raises(TimeoutError):
            turn.call(lambda: released.wait(LONG))
        with pytest.raises(TimeoutError):
            turn.call(lambda: "too late")
    released.set()
    with lane.turn(LONG) as turn:
        assert turn.call(lambda: 1) == 1
