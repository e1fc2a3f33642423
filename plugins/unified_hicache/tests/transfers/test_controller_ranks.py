"""Several ranks: what one of them could not do, none has done. The others are scripted through `agree`."""

import pytest


class OtherRank:
    """Agrees with everything, except that it answers `refusal` to the next question of `refuses` numbers."""

    def __init__(self):
        self.asked = []
        self.refusal = None

    def __call__(self, values):
        self.asked.append(list(values))
        if self.refusal is not None and len(values) == len(self.refusal):
            answer, self.refusal = self.refusal, None
            return [min(pair) for pair in zip(values, answer, strict=True)]
        return list(values)


@pytest.fixture
def other():
    return OtherRank()


@pytest.fixture
def two_ranks(make_rig, other):
    return make_rig(agree=other)


def test_a_copy_that_failed_on_one_rank_has_failed_on_all(two_ranks, other, page):
    rig = two_ranks
    rig.gate.write([1], page(1))
    write = rig.write(rig.slots(1), [1])
    rig.gate.idle()
    other.refusal = [0]  # the commit asks for one copy's outcome; the numbers of commits are two
    rig.settle(write)
    assert rig.committed == [("w", False)]
    assert other.refusal is None


def test_a_load_that_failed_on_one_rank_has_failed_on_all(two_ranks, other, page):
    rig = two_ranks
    slots = rig.stored(1)
    load = rig.load([5], slots)
    rig.gate.idle()
    other.refusal = [0]
    rig.settle(load)
    assert rig.committed == [("l", False)]


def test_withdrawing_asks_nobody(two_ranks, other, page):
    """Whoever withdraws has agreed on it: with a load that another rank does not even have, there is nobody to ask."""
    rig = two_ranks
    load = rig.load([5], rig.stored(1))
    asked = len(other.asked)
    assert load.cancel()
    assert len(other.asked) == asked
    assert rig.committed == [("l", False)]


def test_nothing_is_asked_where_nothing_is_under_way(two_ranks, other):
    two_ranks.controller.poll()
    assert other.asked == [[0, 0]]
