"""Where an answer ends, and which text it then is. It knows tokens and texts, and neither batches nor caches."""

from collections.abc import Callable, Collection, Sequence
from typing import final

from kvcache_engine.request import FinishReason, Request


@final
class Endings:
    """`end_tokens` end an answer and are no part of its text; `context`: tokens of prompt and answer together."""

    def __init__(self, end_tokens: Collection[int], detokenize: Callable[[Sequence[int]], str], context: int) -> None:
        self._end_tokens = frozenset(end_tokens)
        self._detokenize = detokenize
        self._context = context

    def reason(self, request: Request) -> FinishReason | None:
        """Why the answer ends with its last token; None if it goes on."""
        if request.output_ids[-1] in self._end_tokens:
            return "stop"
        if request.spec.stop:
            text = self._detokenize(request.output_ids)
            if any(stop in text for stop in request.spec.stop):
                return "stop"
        if len(request.output_ids) >= request.spec.max_tokens or request.n_tokens >= self._context:
            return "length"
        return None

    def text(self, request: Request) -> str:
        """The answer so far, up to the first stop text."""
        ids = request.output_ids
        if ids and ids[-1] in self._end_tokens:
            ids = ids[:-1]
        text = self._detokenize(ids)
        ends = [text.find(stop) for stop in request.spec.stop if stop in text]
        return text[: min(ends)] if ends else text
