"""One request: what was asked, how far it is, and what it cost. It knows no model, no pool and no cache."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, final

import numpy as np
import numpy.typing as npt

from kvcache_core.contracts.locks import Lock, Ticket
from kvcache_core.contracts.tokens import ExtraKey
from kvcache_engine.request_pages import RequestPages
from kvcache_engine.request_states import RequestStates

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy; randomness depends on (seed, position) only, so a preempted request goes on
    with the tokens it would have drawn anyway."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """What a caller asks. `prompt_ids`: int32, at least one. `stop`: texts that end the answer and are not part of it."""

    id: str
    prompt_ids: npt.NDArray[np.int32]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    extra_key: ExtraKey = ()


class Phase(Enum):
    """Where a request is. A preempted request is queued again."""

    QUEUED = "queued"
    LOADING = "loading"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(slots=True)
class TokenCounts:
    """Tokens of one request. `device + host + storage + computed == prompt tokens` once the prompt is through."""

    device: int = 0
    host: int = 0
    storage: int = 0
    computed: int = 0
    """Prompt tokens that went through the model for the first time."""
    recomputed: int = 0
    """Tokens, generated ones included, that went through the model again after a preemption."""
    decoded: int = 0
    """Generated tokens that went through the model for the first time."""

    @property
    def cached(self) -> int:
        return self.device + self.host + self.storage


@final
@dataclass(slots=True, eq=False)
class Request:
    """The state of a request inside the scheduler, which alone changes it."""

    spec: RequestSpec
    pages: RequestPages
    submitted_at: float
    states: RequestStates = field(default_factory=RequestStates)
    phase: Phase = Phase.QUEUED
    output_ids: list[int] = field(default_factory=list[int])
    computed: int = 0
    """Tokens from the start whose ids are on the host and whose forward is dispatched, or that came from the cache."""
    high_water: int = 0
    """The largest `computed` ever: what lies below it and is computed again is recomputation."""
    lock: Lock | None = None
    """Covers the cached prefix while the request runs; None while queued or loading."""
    released: set[str] = field(default_factory=set[str])
    """Components whose part of `lock` was released early."""
    ticket: Ticket | None = None
    """The load the request waits for; its lock becomes the request's."""
    fetched: tuple[int, int] = (0, 0)
    """Positions [start, end) that storage delivered for it while it waited."""
    matched_device: int = 0
    """Device part of the match that is being loaded."""
    counts: TokenCounts = field(default_factory=TokenCounts)
    preemptions: int = 0
    first_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    text: str = ""

    @property
    def n_prompt(self) -> int:
        return len(self.spec.prompt_ids)

    @property
    def n_tokens(self) -> int:
        return len(self.spec.prompt_ids) + len(self.output_ids)

    def ids(self) -> npt.NDArray[np.int32]:
        """Prompt and generated ids, contiguous int32."""
        if not self.output_ids:
            return self.spec.prompt_ids
        return np.concatenate([self.spec.prompt_ids, np.asarray(self.output_ids, np.int32)])

    def count_cached(self, length: int, device_len: int) -> None:
        """Account for a prefix taken from the cache: prompt tokens beyond what was already computed or counted. What was fetched
        for this request counts as storage, wherever it lies by now."""
        start, end = min(self.high_water, self.n_prompt), min(length, self.n_prompt)
        if end > start:
            device_end = max(start, min(device_len, end))
            stored = _overlap(self.fetched, (start, end))
            on_device = device_end - start - _overlap(self.fetched, (start, device_end))
            self.counts.storage += stored
            self.counts.device += on_device
            self.counts.host += end - start - stored - on_device
        self.high_water = max(self.high_water, length)

    def count_computed(self, start: int, end: int) -> None:
        """Account for the positions [start, end) that went through the model."""
        again = max(0, min(end, self.high_water) - start)
        prompt = max(0, min(end, self.n_prompt) - max(start, self.high_water))
        self.counts.recomputed += again
        self.counts.computed += prompt
        self.counts.decoded += end - start - again - prompt
        self.high_water = max(self.high_water, end)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))
