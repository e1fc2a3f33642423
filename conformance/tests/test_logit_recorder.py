"""The recorder finds differences, and only differences."""

import numpy as np
import pytest

from kvcache_conformance.logit_recorder import LogitRecorder, compare, kl_divergence


def draw(recorder, rows, places):
    seeds, positions = (np.array(x) for x in zip(*places, strict=True))
    return recorder.sample(np.array(rows, np.float32), None, None, seeds, positions).tolist()


def test_kl_is_zero_for_equal_distributions_and_exact_for_known_ones():
    assert kl_divergence(np.array([1.0, 2.0]), np.array([11.0, 12.0])) == pytest.approx(0, abs=1e-12)
    p, q = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    assert kl_divergence(p, q) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))


def test_forced_tokens_are_drawn_and_the_own_choice_is_kept():
    recorder = LogitRecorder(forced={(1, 5): 2, (2, 6): 0})
    padded = [[0, 9, 1], [0, 1, 9], [7, 7, 7]]  # the last row is padding of the batch
    assert draw(recorder, padded, [(1, 5), (2, 6)]) == [2, 0]
    assert recorder.tokens == {(1, 5): 1, (2, 6): 2}
    with pytest.raises(KeyError):
        draw(recorder, [[1, 2, 3]], [(9, 9)])


def test_every_repetition_of_a_place_is_compared():
    reference, other = LogitRecorder(), LogitRecorder()
    draw(reference, [[0, 1]], [(1, 5)])
    draw(other, [[0, 1]], [(1, 5)])
    assert compare(reference, other) == (0.0, 1)
    draw(other, [[0, 3]], [(1, 5)])  # after a preemption, and wrong
    assert compare(reference, other)[0] > 0.1


def test_runs_that_drew_elsewhere_cannot_be_compared():
    reference, other = LogitRecorder(), LogitRecorder()
    draw(reference, [[0, 1]], [(1, 5)])
    draw(other, [[0, 1]], [(1, 6)])
    with pytest.raises(ValueError, match="different places"):
        compare(reference, other)
