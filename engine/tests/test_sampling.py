"""Sampler: what is drawn depends on logits, seed and position only, and follows the distribution that was asked for."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvcache_engine.sampling import Sampler

VOCAB = 300


def sample(sampler, logits, temperature, top_p, seed, position) -> list[int]:
    """Broadcast scalars to the rows of `position`."""
    n = len(position)
    return sampler.sample(
        jnp.asarray(logits, jnp.float32),
        np.broadcast_to(np.asarray(temperature, np.float32), n),
        np.broadcast_to(np.asarray(top_p, np.float32), n),
        np.broadcast_to(np.asarray(seed, np.uint64), n),
        np.asarray(position, np.int32),
    ).tolist()


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    return Sampler()


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(8, VOCAB)).astype(np.float32) * 2


def test_greedy_takes_the_first_of_the_largest(sampler, logits) -> None:
    logits = logits.copy()
    logits[0, [7, 19]] = 50
    chosen = sample(sampler, logits, 0, 1, 3, range(8))
    assert chosen == logits.argmax(-1).tolist()
    assert chosen[0] == 7
    # A greedy row beside drawing ones takes the other path and the same token.
    assert sample(sampler, logits, [0, 1, 1, 1, 1, 1, 1, 0], 0.9, 3, range(8))[::7] == chosen[::7]


def test_a_draw_does_not_depend_on_its_batch(sampler, logits) -> None:
    seeds, positions = np.arange(8) + 2**40, np.arange(8) * 3
    together = sample(sampler, logits, 0.8, 0.9, seeds, positions)
    alone = [sample(sampler, logits[i : i + 1], 0.8, 0.9, seeds[i : i + 1], positions[i : i + 1])[0] for i in range(8)]
    backwards = sample(sampler, logits[::-1], 0.8, 0.9, seeds[::-1], positions[::-1])[::-1]
    mixed = sample(sampler, logits, [0.8, 0] * 4, [0.9, 0.1] * 4, seeds, positions)
    padded = sample(sampler, np.concatenate([logits[:3], np.full((5, VOCAB), np.nan)]), 0.8, 0.9, seeds[:3], positions[:3])
    assert together == alone == backwards
    assert mixed[::2] == together[::2]
    assert padded == together[:3]


def test_seed_and_position_both_matter(sampler) -> None:
    flat = np.zeros((8, VOCAB))
    assert len(set(sample(sampler, flat, 1, 1, range(8), [4] * 8))) > 4
    assert len(set(sample(sampler, flat, 1, 1, 9, range(8)))) > 4
    assert len(set(sample(sampler, flat, 1, 1, np.arange(8) << 32, [4] * 8))) > 4
    assert len(set(sample(sampler, flat, 1, 1, 9, [4] * 8))) == 1


def test_frequencies_follow_the_probabilities(sampler) -> None:
    """4,096 draws from (0.5, 0.3, 0.2): five standard deviations are below 0.04."""
    row = np.log(np.array([0.5, 0.3, 0.2]))
    counts = np.zeros(3)
    for start in range(0, 4096, 512):
        drawn = sample(sampler, np.tile(row, (512, 1)), 1, 1, 11, range(start, start + 512))
        counts += np.bincount(drawn, minlength=3)
    np.testing.assert_allclose(counts / 4096, [0.5, 0.3, 0.2], atol=0.04)


def test_a_temperature_sharpens_and_flattens(sampler) -> None:
    rows = np.tile(np.array([1.0, 0.0]), (512, 1))
    shares = [1 - np.mean(sample(sampler, rows, t, 1, 3, range(512))) for t in (0.3, 1.0, 5.0)]
    expected = [1 / (1 + np.exp(-1 / t)) for t in (0.3, 1.0, 5.0)]
    np.testing.assert_allclose(shares, expected, atol=0.11)


@pytest.mark.parametrize(("top_p", "kept"), [(0.01, 1), (0.4, 1), (0.41, 2), (0.7, 2), (0.75, 3), (0.95, 4), (1.0, 4)])
def test_top_p_keeps_the_fewest_that_reach_it(sampler, top_p, kept) -> None:
    # Probabilities 0.4, 0.3, 0.2, 0.1 in a shuffled order; a rounding error may push a sum to either side of an exact top_p.
    row = np.log(np.array([0.2, 0.4, 0.1, 0.3])) + 1e-4 * np.array([0, 1, 0, 1])
    by_rank = [1, 3, 0, 2]
    drawn = sample(sampler, np.tile(row, (512, 1)), 1, top_p, 17, range(512))
    assert set(drawn) == set(by_rank[:kept])


def test_extreme_values_stay_finite(sampler) -> None:
    row = np.array([[3e38, -3e38, 0.0, 3e38], [0.0, -np.inf, -np.inf, -np.inf]])
    assert set(sample(sampler, row[:1], 1e-30, 1, 2, [5])) <= {0, 3}
    assert sample(sampler, row[1:], 100, 1, 2, [5]) == [0]


def test_programs_are_compiled_once_for_a_shape(logits) -> None:
    sampler = Sampler()
    sample(sampler, logits, 0, 1, 1, range(8))
    sample(sampler, logits, 0.5, 1, 1, range(8))
    assert sampler.compile_count == 2
    sample(sampler, logits, 0, 1, 1, range(5))
    sample(sampler, logits, [0.1, 2, 3], 0.3, 7, range(3))
    assert sampler.compile_count == 2


@pytest.mark.parametrize(
    ("temperature", "top_p", "message"),
    [(-0.1, 1, "temperature"), (np.nan, 1, "temperature"), (np.inf, 1, "temperature"), (1, 0, "top_p"), (1, 1.1, "top_p")],
)
def test_impossible_settings_are_refused(sampler, logits, temperature, top_p, message) -> None:
    with pytest.raises(ValueError, match=message):
        sample(sampler, logits, temperature, top_p, 1, range(8))


def test_more_rows_than_logits_are_refused(sampler, logits) -> None:
    with pytest.raises(ValueError, match="9 temperatures"):
        sample(sampler, logits, 1, 1, 1, range(9))
