"""Chooses the next token of each row: the most likely one, or a seeded draw from the nucleus (top-p, Holtzman et al., 2019).

It knows nothing about requests or steps. A draw depends on its logits, its seed and its position only, so a request gives the
same answer whoever shares its batch, and after a preemption.
"""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from kvcache_engine.buckets import buckets

_LARGEST_FINITE_BITS = 0x7F7FFFFF
_LOWEST_TEMPERATURE = 1e-6


@final
class Sampler:
    """Compiles one greedy and one drawing program for each shape of logits, and counts them.

    With `max_batch`, the first use of either compiles it for every number of rows up to that, so that later batches compile
    nothing.
    """

    def __init__(self, max_batch: int | None = None) -> None:
        self._compiled = 0
        self._sizes = [] if max_batch is None else buckets(max_batch)
        self._ready: set[bool] = set()
        self._greedy = jax.jit(self._trace_greedy)
        self._drawn = jax.jit(self._trace_drawn)

    @property
    def compile_count(self) -> int:
        """Programs traced so far; constant once every shape of a workload has been seen."""
        return self._compiled

    def sample(
        self,
        logits: jax.Array,
        temperature: npt.NDArray[np.float32],
        top_p: npt.NDArray[np.float32],
        seed: npt.NDArray[np.uint64],
        position: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int32]:
        """Waits for `logits` and returns the chosen ids, int32 [B].

        Args:
            logits: float32 [B', vocab] with B' >= B, as the runner gives them; rows beyond B are ignored.
            temperature: [B]; 0 means the most likely token, the lowest id among equals.
            top_p: [B], in (0, 1]: draw from the fewest most likely tokens whose probabilities reach top_p; ties are kept.
            seed: [B], any uint64.
            position: [B], how many tokens stand before the one to choose.

        Raises ValueError for other shapes, a negative temperature, or a top_p outside (0, 1].
        """
        rows = len(temperature)
        if rows < 1 or logits.ndim != 2 or len(logits) < rows or {len(top_p), len(seed), len(position)} != {rows}:
            raise ValueError(
                f"{rows} temperatures, {len(top_p)} top_p, {len(seed)} seeds, {len(position)} positions for logits {logits.shape}"
            )
        if not (np.isfinite(temperature).all() and (temperature >= 0).all()):
            raise ValueError(f"temperature must be 0 or more: {temperature.tolist()}")
        if not ((top_p > 0) & (top_p <= 1)).all():
            raise ValueError(f"top_p must be above 0 and at most 1: {top_p.tolist()}")
        greedy = not temperature.any()
        if greedy not in self._ready:
            self._ready.add(greedy)
            self._compile(logits, greedy)
        if greedy:
            return np.asarray(self._greedy(logits))[:rows]
        size = len(logits)
        low, high = (seed & np.uint64(0xFFFFFFFF)).astype(np.uint32), (seed >> np.uint64(32)).astype(np.uint32)
        drawn = self._drawn(
            logits,
            _pad(temperature, size, np.float32(0)),
            _pad(top_p, size, np.float32(1)),
            _pad(low, size, np.uint32(0)),
            _pad(high, size, np.uint32(0)),
            _pad(position, size, np.int32(0)),
        )
        return np.asarray(drawn)[:rows]

    def _compile(self, like: jax.Array, greedy: bool) -> None:
        """Run one kind of program once for every number of rows."""
        for n in self._sizes:
            logits = jax.device_put(np.zeros((n, like.shape[1]), np.float32), like.sharding)
            if greedy:
                self._greedy(logits)
            else:
                none = np.zeros(n, np.uint32)
                self._drawn(logits, none.astype(np.float32), np.ones(n, np.float32), none, none, none.astype(np.int32))

    def _trace_greedy(self, logits: jax.Array) -> jax.Array:
        self._compiled += 1
        return _most_likely(logits)

    def _trace_drawn(self, logits: jax.Array, *rest: jax.Array) -> jax.Array:
        self._compiled += 1
        return jax.vmap(_draw)(logits, *rest)


def _pad(values: npt.NDArray[np.generic], size: int, filler: np.generic) -> npt.NDArray[np.generic]:
    padded = np.full(size, filler, dtype=filler.dtype)
    padded[: len(values)] = values
    return padded


def _most_likely(logits: jax.Array) -> jax.Array:
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def _draw(
    logits: jax.Array, temperature: jax.Array, top_p: jax.Array, seed_low: jax.Array, seed_high: jax.Array, position: jax.Array
) -> jax.Array:
    """One row: [vocab] logits and five scalars to one id."""
    # From the maximum down, and a floor below the temperature: quotients must not overflow where they matter.
    scaled = (logits - jnp.max(logits)) / jnp.maximum(temperature, _LOWEST_TEMPERATURE)
    probabilities = jax.nn.softmax(scaled)
    nucleus = probabilities >= _nucleus_threshold(probabilities, top_p)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed_low), seed_high), position)
    # The maximum of logits with Gumbel noise is a draw from their softmax; no normalisation over the nucleus is needed.
    noisy = jnp.where(nucleus, scaled + jax.random.gumbel(key, scaled.shape, scaled.dtype), -jnp.inf)
    return jnp.where(temperature > 0, _most_likely(noisy), _most_likely(logits))


def _nucleus_threshold(probabilities: jax.Array, top_p: jax.Array) -> jax.Array:
    """The largest probability t such that tokens with probability >= t together reach `top_p`.

    Found by bisection over the bit patterns of float32, which are ordered like the positive numbers they stand for: 31 sums over
    the vocabulary instead of a sort of it, which is several times slower on the CPU.
    """

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds  # mass(low) reaches top_p, mass(high) does not
        middle = low + (high - low) // 2
        threshold = jax.lax.bitcast_convert_type(middle, jnp.float32)
        reached = jnp.sum(jnp.where(probabilities >= threshold, probabilities, 0.0)) >= top_p
        return jnp.where(reached, middle, low), jnp.where(reached, high, middle)

    # Rounding may leave the whole mass a little below a top_p of 1; the threshold is then 0 and every token is kept.
    low, _ = jax.lax.fori_loop(0, 31, halve, (jnp.int32(0), jnp.int32(_LARGEST_FINITE_BITS)))
    return jax.lax.bitcast_convert_type(low, jnp.float32)
