"""What is reported of each request and of a whole run: plain values, ready for JSON and for tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypedDict

from kvcache_engine.persisting import Persisted
from kvcache_engine.request import Request
from kvcache_engine.tiers import Movement, TierSize


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request as it ended. For every prompt that got through, cached + computed == prompt tokens."""

    id: str
    """The request's id, from the prompts file."""
    prompt_tokens: int
    """Tokens of the prompt."""
    cached_tokens: Mapping[str, int]
    """Prompt tokens that were not computed, by the tier they came from: `device`, `host`, `storage`."""
    computed_tokens: int
    """Prompt tokens that were computed, each counted once."""
    recomputed_tokens: int
    """Tokens computed again after a preemption; not part of the rule above."""
    ttft_s: float | None
    """Seconds from queueing to the first token; null if there was none."""
    output_tokens: Sequence[int]
    """Ids of the answer, the end token included."""
    text: str
    """The answer, without the end token."""
    finish_reason: str
    """`stop` (end token or stop text), `length` (max_tokens or context), `abort` (interrupted) or `error`."""
    error: str | None
    """What was wrong with a request that could not be served; null otherwise."""

    @property
    def cached(self) -> int:
        return sum(self.cached_tokens.values())

    @property
    def begun(self) -> bool:
        """False for a request that was aborted before anything of its prompt came from a tier or was computed."""
        return self.finish_reason != "abort" or self.cached + self.computed_tokens > 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Totals(TypedDict):
    """The sums over the requests of a run."""

    requests: int
    """Requests that were served, refused or aborted."""
    errors: int
    """Requests that could not be served."""
    aborted: int
    """Requests that an interrupt ended."""
    not_begun: int
    """Those of the aborted ones of whose prompts nothing had come from a tier or been computed; none of the sums below has them.
    """
    prompt_tokens: int
    """Sum over the requests that had begun. What is neither cached nor computed of it was not reached: an interrupt or an error
    ended a request within its prompt."""
    cached_tokens: dict[str, int]
    """Sums over the requests, by tier."""
    computed_tokens: int
    """Sum over the requests."""
    recomputed_tokens: int
    """Sum over the requests."""
    output_tokens: int
    """Tokens of all answers."""
    hit_rate: float
    """Cached tokens of all tiers over `prompt_tokens`; 0 without a prompt."""
    ttft_with_hit_s: float | None
    """Median time to the first token, in seconds, of requests with cached tokens; null if there was none."""
    ttft_without_hit_s: float | None
    """Median time to the first token, in seconds, of requests without; null if there was none."""


class RunSummary(Totals):
    """`summary` in the JSON of `kvcache run`: the totals, and what the run as a whole was and cost."""

    cache_type: str
    """The cache that resolution chose."""
    page_size: int
    """Tokens in a page."""
    model: dict[str, str]
    """`id` and `version`, which are part of every page's identity."""
    wall_s: float
    """Seconds from the first request's queueing to the last answer; loading the model and storing pages at the end are not
    counted."""
    attention_tokens: int
    """Tokens that the attention computed, counted in its call: prompts, recomputation and decoding."""
    compiled_programs: int
    """Programs traced by the model and by sampling, whether compiled or read from the compilation cache."""
    scheduler: dict[str, Any]
    """SchedulerStats, below."""
    cache: dict[str, object]
    """CacheCounters, below."""
    tiers: dict[str, TierSize]
    """TierSize, below, by tier: `device` (L1) and, where the cache has it, `host` (L2)."""
    movements: dict[str, Movement]
    """Movement, below, by direction."""
    storage: str | None
    """Kind of the storage (L3), null without one; how it is, is in `cache`: `storage_state`."""
    persisted: Persisted | None
    """Persisted, below: what was stored when the last request had ended; null without storage."""


def result_of(request: Request) -> RequestResult:
    """Report a finished request."""
    counts, first = request.counts, request.first_token_at
    return RequestResult(
        id=request.spec.id,
        prompt_tokens=request.n_prompt,
        cached_tokens={"device": counts.device, "host": counts.host, "storage": counts.storage},
        computed_tokens=counts.computed,
        recomputed_tokens=counts.recomputed,
        ttft_s=None if first is None else first - request.submitted_at,
        output_tokens=list(request.output_ids),
        text=request.text,
        finish_reason=request.finish_reason or "abort",
        error=request.error,
    )


def failed(id: str, error: str) -> RequestResult:
    """Report a request that never got as far as the scheduler."""
    return RequestResult(id, 0, {"device": 0, "host": 0, "storage": 0}, 0, 0, None, [], "", "error", error)


def totals(results: Sequence[RequestResult]) -> Totals:
    """Sum up a run. The hit rate is cached over prompt tokens; times to first token are medians in seconds."""
    prompt = sum(r.prompt_tokens for r in results if r.begun)
    cached = {tier: sum(r.cached_tokens[tier] for r in results) for tier in ("device", "host", "storage")}
    hits = [r.ttft_s for r in results if r.ttft_s is not None and r.cached]
    cold = [r.ttft_s for r in results if r.ttft_s is not None and not r.cached]
    return {
        "requests": len(results),
        "errors": sum(r.error is not None for r in results),
        "aborted": sum(r.finish_reason == "abort" for r in results),
        "not_begun": sum(not r.begun for r in results),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": sum(r.computed_tokens for r in results),
        "recomputed_tokens": sum(r.recomputed_tokens for r in results),
        "output_tokens": sum(len(r.output_tokens) for r in results),
        "hit_rate": sum(cached.values()) / prompt if prompt else 0.0,
        "ttft_with_hit_s": median(hits) if hits else None,
        "ttft_without_hit_s": median(cold) if cold else None,
    }
