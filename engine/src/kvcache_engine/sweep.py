"""Serves one prompts file once for each size of L2, and keeps what the tiers gave and how long first tokens took.

One model and one set of compiled programs serve all sizes, so that they differ in nothing but the host pool. It prints nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, TypedDict

from kvcache_core.config.model import CacheConfig, HiCacheConfig
from kvcache_core.errors import KVCacheError
from kvcache_engine.config import EngineConfig
from kvcache_engine.engine import Engine, build_engine
from kvcache_engine.model.loaded import LoadedModel
from kvcache_engine.prompts_file import PromptLine
from kvcache_engine.run import RunReport, Stop, View, serve
from kvcache_engine.tiers import Movement, TierSize


class SweepPoint(TypedDict):
    """One ratio of a sweep: `points` in the JSON of `kvcache sweep` are a list of these."""

    ratio: float
    """Size of L2 as a multiple of L1; 0 is without L2."""
    cache_type: str
    """The cache that resolution chose."""
    requests: int
    """Requests that were served, refused or aborted."""
    errors: int
    """Requests that could not be served."""
    prompt_tokens: int
    """Sum over the requests."""
    computed_tokens: int
    """Sum over the requests."""
    hit_rates: dict[str, float]
    """Cached over prompt tokens by tier: `device`, `host`, `storage`."""
    hit_rate: float
    """The sum of the tiers."""
    ttft_median_s: float | None
    """Median time to the first token, in seconds from queueing; null if no request got so far."""
    ttft_p90_s: float | None
    """The time that 90 % of the requests stay below; null for fewer than two requests."""
    wall_s: float
    """Seconds from the first request's queueing to the last answer."""
    tiers: dict[str, TierSize]
    """As in the summary of a run."""
    movements: dict[str, Movement]
    """As in the summary of a run."""
    dropped: dict[str, int]
    """Tokens that were given up, by reason: gone from a tier without a copy below. What was only put off is not among them."""


class SweepFailure(TypedDict):
    """A ratio for which no cache could be built: `failures` in the JSON of `kvcache sweep` are a list of these."""

    ratio: float
    """Size of L2 as a multiple of L1."""
    error: str
    """What was wrong."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Both in the order of the ratios."""

    points: Sequence[SweepPoint]
    failures: Sequence[SweepFailure]


def with_ratio(config: CacheConfig, ratio: float) -> CacheConfig:
    """`config` with an L2 of `ratio` times L1, sized in no other way; ratio 0 takes L2 away, storage included."""
    if ratio == 0:
        return config.model_copy(update={"hicache": None})
    hicache = HiCacheConfig() if config.hicache is None else config.hicache
    return config.model_copy(update={"hicache": hicache.model_copy(update={"ratio": ratio, "host_bytes": None})})


def sweep(
    model: LoadedModel,
    config: CacheConfig,
    engine_config: EngineConfig,
    lines: Sequence[PromptLine],
    ratios: Sequence[float],
    views: Callable[[str], View],
    stop: Stop,
    *,
    warm_up: bool = True,
) -> SweepResult:
    """Serve `lines` for every ratio. `views(what)` gives the view of one pass. With `warm_up` the first ratio is served once more
    before, and not reported, so that no point pays for compilation. What `stop` cut short is not a point, and a ratio for which
    no cache can be built takes nothing from the others.

    Raises:
        ConfigError, PluginError: no cache can be built for any of the ratios.
    """
    points: list[SweepPoint] = []
    failures: list[SweepFailure] = []
    like: Engine | None = None
    for ratio in ratios:
        try:
            for what in [f"ratio {ratio:g}"] if like is not None or not warm_up else ["warm-up", f"ratio {ratio:g}"]:
                engine = build_engine(with_ratio(config, ratio), engine_config, model, like=like)
                report = serve(engine, engine_config, lines, views(what), stop)
                if stop.requested:
                    return SweepResult(points, failures)
                like = engine
                if what != "warm-up":
                    points.append(_point(ratio, report))
        except KVCacheError as error:
            if like is None and ratio == ratios[-1]:
                raise
            failures.append({"ratio": ratio, "error": str(error)})
    return SweepResult(points, failures)


def _point(ratio: float, report: RunReport) -> SweepPoint:
    summary: Mapping[str, Any] = report.summary
    prompt = summary["prompt_tokens"]
    times = [result.ttft_s for result in report.requests if result.ttft_s is not None]
    return {
        "ratio": ratio,
        "cache_type": summary["cache_type"],
        "requests": summary["requests"],
        "errors": summary["errors"],
        "prompt_tokens": prompt,
        "computed_tokens": summary["computed_tokens"],
        "hit_rates": {tier: tokens / prompt if prompt else 0.0 for tier, tokens in summary["cached_tokens"].items()},
        "hit_rate": summary["hit_rate"],
        "ttft_median_s": median(times) if times else None,
        "ttft_p90_s": quantiles(times, n=10, method="inclusive")[-1] if len(times) > 1 else None,
        "wall_s": summary["wall_s"],
        "tiers": summary["tiers"],
        "movements": summary["movements"],
        "dropped": summary["cache"]["dropped"],
    }
