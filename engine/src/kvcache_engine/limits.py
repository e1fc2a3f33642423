"""What an engine can serve at all, and the check of a request against it. It knows no other request and no cache."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from kvcache_engine.errors import RequestError
from kvcache_engine.request import RequestSpec, Sampling


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a scheduler. `context`: tokens of prompt and answer together; `vocab_size` bounds token ids."""

    context: int
    vocab_size: int
    chunk_tokens: int
    max_running: int

    def check(self, spec: RequestSpec, fits: Callable[[int], bool]) -> None:
        """`fits(n)`: whether empty pools could hold `n` tokens.

        Raises:
            RequestError: the request can never be served; the text says why.
        """
        n, ids = len(spec.prompt_ids), spec.prompt_ids
        if n == 0:
            raise RequestError(f"request {spec.id!r}: the prompt is empty")
        if n >= self.context:
            raise RequestError(
                f"request {spec.id!r}: the prompt has {n} tokens, but the context holds {self.context}, answer included"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size:
            raise RequestError(f"request {spec.id!r}: token ids must lie in [0, {self.vocab_size})")
        if spec.max_tokens < 1:
            raise RequestError(f"request {spec.id!r}: max_tokens must be at least 1, not {spec.max_tokens}")
        _check_sampling(spec.id, spec.sampling)
        # The last token is drawn, and never computed.
        longest = min(n + spec.max_tokens, self.context) - 1
        if not fits(longest):
            raise RequestError(
                f"request {spec.id!r}: prompt and answer may need {longest} tokens, more than the whole device pool; "
                "raise engine.device_tokens (and, where they are set, window_tokens and device_states) or lower max_tokens"
            )


def _check_sampling(id: str, sampling: Sampling) -> None:
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise RequestError(f"request {id!r}: temperature must be 0 or more, not {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise RequestError(f"request {id!r}: top_p must be in (0, 1], not {sampling.top_p}")
