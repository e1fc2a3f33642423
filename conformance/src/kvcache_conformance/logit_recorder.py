"""Compares two runs of a model by the logits of every generated position: the proof that reused pages changed nothing.

A recorder stands where a host draws tokens. It knows requests by their seed, so a workload gives each request a seed of its own;
what it is forced to answer (teacher forcing) keeps two runs on the same tokens even where they would part.
"""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt

Place = tuple[int, int]
"""(seed of a request, position of the token that is drawn)."""


@final
class LogitRecorder:
    """Draws greedily, or the tokens of `forced`, and keeps the logits of every draw.

    `logits`: by place, every row seen there: a request that was preempted is asked again for the same position.
    """

    compile_count = 0

    def __init__(self, forced: Mapping[Place, int] | None = None) -> None:
        self._forced = forced
        self.logits: dict[Place, list[npt.NDArray[np.float32]]] = {}
        self.tokens: dict[Place, int] = {}

    def sample(self, logits: Any, temperature: Any, top_p: Any, seed: Any, position: Any) -> npt.NDArray[np.int32]:
        """`logits`: [B', vocab] with B' >= B; the others [B]. Raises KeyError for a place that `forced` does not know."""
        rows = np.asarray(logits)[: len(seed)]
        drawn: list[int] = []
        for row, place in zip(rows, zip(seed.tolist(), position.tolist(), strict=True), strict=True):
            self.logits.setdefault(place, []).append(row.copy())
            self.tokens[place] = int(row.argmax())
            drawn.append(self.tokens[place] if self._forced is None else self._forced[place])
        return np.array(drawn, np.int32)


def kl_divergence(p_logits: npt.NDArray[Any], q_logits: npt.NDArray[Any]) -> float:
    """KL(p || q) in nats of two next-token distributions, by log-softmax in float64."""
    p, q = _log_softmax(p_logits), _log_softmax(q_logits)
    return float((np.exp(p) * (p - q)).sum())


def compare(reference: LogitRecorder, other: LogitRecorder) -> tuple[float, int]:
    """(largest KL over all places and repetitions, places compared). Raises ValueError when the two runs drew at other places."""
    if reference.logits.keys() != other.logits.keys():
        missing = reference.logits.keys() ^ other.logits.keys()
        raise ValueError(f"the runs drew at different places, such as {sorted(missing)[:3]}")
    worst = 0.0
    for place, rows in other.logits.items():
        worst = max(worst, *(kl_divergence(reference.logits[place][0], row) for row in rows))
    return worst, len(other.logits)


def _log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
