"""Answers conversations one question after the other, all of them at once: every question waits until the one before is answered,
and a conversation goes on when all others have had their turn. So what a conversation needs again has had time to move down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from kvcache_core.errors import KVCacheError
from kvcache_engine.engine import Engine
from kvcache_engine.persisting import persist
from kvcache_engine.request import RequestSpec
from kvcache_engine.results import RequestResult, Totals, result_of, totals
from snapshots.conversations import Conversation

TIERS = ("device", "host", "storage")
PERSIST_SECONDS = 60.0


class BenchmarkFailed(KVCacheError):
    """A request was not answered, or the storage did not take everything: the figures would be of something else.

    What to do: look at the disk that L3 is on (`--store`), and at the request that the message names.
    """


@final
@dataclass(frozen=True, slots=True)
class Served:
    """What one pass gave: sums over all requests, and over the first question of every conversation alone."""

    all: Totals
    first: Totals

    def hit_rates(self) -> dict[str, float]:
        """By tier, of all tiers together, and the same of first questions."""
        prompt = self.all["prompt_tokens"]
        by_tier = {tier: self.all["cached_tokens"][tier] / prompt for tier in TIERS}
        return {**by_tier, "all": self.all["hit_rate"], "first": self.first["hit_rate"]}


def answer(engine: Engine, conversations: Sequence[Conversation], answer_tokens: int) -> Served:
    """Answer everything, then have the storage take all that L1 and L2 have. The cache is not closed. Raises BenchmarkFailed."""
    histories = [[{"role": "system", "content": each.system}] for each in conversations]
    turns: list[list[RequestResult]] = []
    for turn in range(max(len(each.questions) for each in conversations)):
        turns.append([])
        for each, history in zip(conversations, histories, strict=True):
            history.append({"role": "user", "content": each.questions[turn]})
            result = _ask(engine, RequestSpec(each.name, engine.model.tokenizer.encode_chat(history), answer_tokens))
            history.append({"role": "assistant", "content": result.text})
            turns[-1].append(result)
    persisted = persist(engine.cache, PERSIST_SECONDS, lambda: False, lambda stored, remaining: None)
    if persisted["remaining"] or persisted["dropped"]:
        raise BenchmarkFailed(f"the storage did not take everything: {persisted}")
    return Served(totals([result for results in turns for result in results]), totals(turns[0]))


def _ask(engine: Engine, spec: RequestSpec) -> RequestResult:
    request = engine.scheduler.submit(spec)
    while engine.scheduler.busy:
        engine.scheduler.step()
    result = result_of(request)
    if result.error is not None:
        raise BenchmarkFailed(f"{spec.id}: {result.error}")
    return result
