"""The recurrence of Kimi Delta Attention and the short convolution against fla-core's and transformers' numbers."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from kvcache_engine.model.delta_rule import gated_delta_rule, unit_length
from kvcache_engine.model.short_conv import short_conv

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def kda() -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / "op_kda.npz"))


@pytest.fixture(scope="module")
def conv() -> dict[str, np.ndarray]:
    return dict(np.load(GOLDEN / "op_short_conv.npz"))


def test_unit_length(kda) -> None:
    for name in "qk":
        np.testing.assert_allclose(unit_length(jnp.asarray(kda[f"{name}_raw"])), kda[name], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("start", ["zero_init", "with_init"])
@pytest.mark.parametrize("chunk", [37, 16, 5, 1])
def test_recurrence_in_chunks(kda, start, chunk) -> None:
    steps = len(kda["v"])
    state = np.zeros_like(kda["initial_state"]) if start == "zero_init" else kda["initial_state"]
    outputs, states = [], {0: state}
    for at in range(0, steps, chunk):
        q, k, v, g, beta = (kda[name][None, at : at + chunk] for name in ("q", "k", "v", "g", "beta"))
        out, after = gated_delta_rule(*map(jnp.asarray, (q * np.float32(0.25), k, v, g, beta, states[at][None])))
        outputs.append(np.asarray(out)[0])
        states[min(at + chunk, steps)] = np.asarray(after)[0]
    np.testing.assert_allclose(np.concatenate(outputs), kda[f"o_{start}"], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(states[steps], kda[f"final_state_{start}"], rtol=0, atol=TOLERANCE)
    for at in {16, 32} & states.keys():
        np.testing.assert_allclose(states[at], kda[f"state_after_{at}_{start}"], rtol=0, atol=TOLERANCE)


def test_a_step_of_padding_leaves_the_state_alone(kda) -> None:
    q, k, v = (jnp.asarray(kda[name][None]) for name in "qkv")
    state = jnp.asarray(kda["initial_state"][None])
    _, after = gated_delta_rule(q, k, v, jnp.zeros(k.shape, jnp.float32), jnp.zeros(k.shape[:3], jnp.float32), state)
    np.testing.assert_array_equal(after, state)


@pytest.mark.parametrize("chunk", [37, 16, 2, 1])
def test_convolution_in_chunks_with_padding(conv, chunk) -> None:
    """Every chunk is padded to the longest, with values that must not come back."""
    x, filters = conv["x"], conv["w"].T
    past, outputs = np.zeros((1, 3, x.shape[1]), np.float32), []
    for at in range(0, len(x), chunk):
        piece = x[at : at + chunk]
        padded = np.full((1, chunk + 2, x.shape[1]), 7.0, np.float32)
        padded[0, : len(piece)] = piece
        y, past = short_conv(*map(jnp.asarray, (padded, filters, past, np.array([len(piece)], np.int32))))
        outputs.append(np.asarray(y)[0, : len(piece)])
    np.testing.assert_allclose(np.concatenate(outputs), conv["y"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(np.asarray(past)[0].T, conv["last_inputs"][:, 1:])
