"""Drives a prompts file through a scheduler: every conversation asks its next turn when the last one is answered.

It knows how prompts become ids and answers become messages; it knows nothing of batches, pages or caches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from kvcache_engine.config import EngineConfig
from kvcache_engine.errors import EngineError
from kvcache_engine.prompts_file import PromptItem, PromptLine
from kvcache_engine.request import Request, RequestSpec, Sampling
from kvcache_engine.results import RequestResult, failed, result_of
from kvcache_engine.scheduler import Scheduler


class PromptEncoder(Protocol):
    """The part of a tokenizer that prompts need."""

    def encode(self, text: str) -> npt.NDArray[np.int32]: ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> npt.NDArray[np.int32]: ...


@dataclass(slots=True)
class _Dialogue:
    """One line of the file on its way. `turn` counts answered user messages; `history` is what the model is shown."""

    order: int
    item: PromptItem
    turn: int
    history: list[Mapping[str, str]]
    position: int
    """Messages of the item already in `history`."""

    @property
    def turns_left(self) -> int:
        """Turns after this one."""
        return len(self.item.names()) - self.turn - 1


def _not_asked(dialogue: _Dialogue) -> str:
    left = dialogue.turns_left
    return f" ({left} later turns of this conversation were not asked)" if left else ""


@final
class Conversations:
    """Serves all lines of a prompts file at once, each conversation one turn after another.

    `step` may be called until `done`; `abort` ends what is under way. `results()` is in request order: by line, then by turn.
    """

    def __init__(self, lines: Sequence[PromptLine], scheduler: Scheduler, encoder: PromptEncoder, defaults: EngineConfig) -> None:
        self._scheduler = scheduler
        self._encoder = encoder
        self._defaults = defaults
        self._results: dict[tuple[int, int], RequestResult] = {}
        self._live: dict[Request, _Dialogue] = {}
        self.expected = sum(1 if line.item is None else len(line.item.names()) for line in lines)
        for order, line in enumerate(lines):
            if line.item is None:
                self._results[order, 0] = failed(line.id, line.error or "malformed")
            else:
                self._ask(_Dialogue(order, line.item, 0, [], 0))

    @property
    def done(self) -> bool:
        return not self._live

    @property
    def finished(self) -> int:
        """Requests that have a result, failed ones included."""
        return len(self._results)

    def step(self) -> Iterator[RequestResult]:
        """Do one scheduler step; yields the requests that ended in it, and next turns that could not be asked."""
        for request in self._scheduler.step():
            dialogue = self._live.pop(request)
            result = result_of(request)
            if request.error is not None:
                result = replace(result, error=f"{request.error}{_not_asked(dialogue)}")
            self._results[dialogue.order, dialogue.turn] = result
            yield result
            refused = None if request.error is not None else self._go_on(dialogue, request.text)
            if refused is not None:
                yield refused

    def abort(self) -> None:
        """End everything under way; it is reported as aborted."""
        for request, dialogue in self._live.items():
            self._scheduler.abort(request)
            self._results[dialogue.order, dialogue.turn] = result_of(request)
        self._live.clear()

    def results(self) -> list[RequestResult]:
        return [self._results[key] for key in sorted(self._results)]

    def _go_on(self, dialogue: _Dialogue, answer: str) -> RequestResult | None:
        if not dialogue.turns_left:
            return None
        dialogue.history.append({"role": "assistant", "content": answer})
        dialogue.turn += 1
        return self._ask(dialogue)

    def _ask(self, dialogue: _Dialogue) -> RequestResult | None:
        """Submit the dialogue's turn; its result, if it can never be served."""
        name = dialogue.item.names()[dialogue.turn]
        try:
            request = self._scheduler.submit(self._spec(name, dialogue.item, self._prompt_ids(dialogue)))
        except EngineError as error:
            refused = failed(name, f"{error}{_not_asked(dialogue)}")
            self._results[dialogue.order, dialogue.turn] = refused
            return refused
        self._live[request] = dialogue
        return None

    def _prompt_ids(self, dialogue: _Dialogue) -> npt.NDArray[np.int32]:
        item = dialogue.item
        if item.messages is not None:
            end = item.open_turns()[dialogue.turn] + 1
            dialogue.history += [{"role": m.role, "content": m.content} for m in item.messages[dialogue.position : end]]
            dialogue.position = end
            return self._encoder.encode_chat(dialogue.history)
        if isinstance(item.prompt, str):
            return self._encoder.encode(item.prompt)
        return np.asarray(item.prompt, np.int32)

    def _spec(self, name: str, item: PromptItem, ids: npt.NDArray[np.int32]) -> RequestSpec:
        defaults = self._defaults
        sampling = Sampling(
            temperature=defaults.temperature if item.temperature is None else item.temperature,
            top_p=defaults.top_p if item.top_p is None else item.top_p,
            seed=defaults.seed if item.seed is None else item.seed,
        )
        return RequestSpec(
            id=name,
            prompt_ids=ids,
            max_tokens=item.max_tokens or defaults.max_tokens,
            sampling=sampling,
            stop=item.stop_texts(),
            extra_key=item.extra_key_parts(),
        )
