"""What is reported of each request and of a whole run: plain values, ready for JSON and for tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from kvcache_engine.request import Request


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request as it ended. Token counts follow the rule cached + computed == prompt tokens for every prompt that got through.

    `cached_tokens`: by tier. `recomputed_tokens`: computed again after a preemption, counted apart. `output_tokens`: ids, the end
    token included. `ttft_s`: seconds from queueing to the first token; None if there was none.
    """

    id: str
    prompt_tokens: int
    cached_tokens: Mapping[str, int]
    computed_tokens: int
    recomputed_tokens: int
    ttft_s: float | None
    output_tokens: Sequence[int]
    text: str
    finish_reason: str
    error: str | None

    @property
    def cached(self) -> int:
        return sum(self.cached_tokens.values())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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


def totals(results: Sequence[RequestResult]) -> dict[str, Any]:
    """Sum up a run. The hit rate is cached over prompt tokens; times to first token are medians in seconds."""
    prompt = sum(r.prompt_tokens for r in results)
    cached = {tier: sum(r.cached_tokens[tier] for r in results) for tier in ("device", "host", "storage")}
    hits = [r.ttft_s for r in results if r.ttft_s is not None and r.cached]
    cold = [r.ttft_s for r in results if r.ttft_s is not None and not r.cached]
    return {
        "requests": len(results),
        "errors": sum(r.error is not None for r in results),
        "aborted": sum(r.finish_reason == "abort" for r in results),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "computed_tokens": sum(r.computed_tokens for r in results),
        "recomputed_tokens": sum(r.recomputed_tokens for r in results),
        "output_tokens": sum(len(r.output_tokens) for r in results),
        "hit_rate": sum(cached.values()) / prompt if prompt else 0.0,
        "ttft_with_hit_s": median(hits) if hits else None,
        "ttft_without_hit_s": median(cold) if cold else None,
    }
