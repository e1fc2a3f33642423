"""docs/reference/counters.md: what a cache counts, and what `kvcache run` reports."""

import ast
from collections.abc import Sequence

from reference_pages.markdown import code, page, table
from reference_pages.source import ClassText, classes_of, described

INTRODUCTION = """What `kvcache run --json OUT` writes: `requests`, one RequestResult each, and `summary`, a RunSummary. A host of
its own reads `cache.counters`, a CacheCounters object; nobody resets it."""


def counters_page() -> str:
    """The page for the counters of this core and of the reference engine."""
    results, tiers = classes_of("kvcache_engine.results"), classes_of("kvcache_engine.tiers")
    stats = classes_of("kvcache_engine.scheduler")["SchedulerStats"]
    return render(
        [
            classes_of("kvcache_core.contracts.counters")["CacheCounters"],
            results["RequestResult"],
            results["Totals"],
            results["RunSummary"],
            tiers["TierSize"],
            tiers["Movement"],
            classes_of("kvcache_engine.persisting")["Persisted"],
            stats,
            classes_of("kvcache_engine.sweep")["SweepPoint"],
            classes_of("kvcache_engine.sweep")["SweepFailure"],
        ],
        classes_of("kvcache_unified_hicache.reasons")["Reasons"],
    )


def render(classes: Sequence[ClassText], reasons: ClassText | None = None) -> str:
    """The page for any classes of counters, and one of the words that they count by; raises UndocumentedError."""
    sections = [_section(of) for of in classes]
    if reasons is not None:
        sections.append(_reasons(reasons))
    return page("Counters and results", INTRODUCTION, *sections)


def _section(of: ClassText) -> str:
    rows = [(code(field.name), code(field.type), described(field.text, f"{of.name}.{field.name}")) for field in of.fields]
    return f"## {of.name}\n\n{described(of.text, of.name)}\n\n{table(('name', 'type', 'meaning'), rows)}"


def _reasons(of: ClassText) -> str:
    rows = [
        (code(str(ast.literal_eval(field.default or "None"))), described(field.text, f"{of.name}.{field.name}"))
        for field in of.fields
    ]
    return f"## {of.name}\n\n{described(of.text, of.name)}\n\n{table(('reason', 'meaning'), rows)}"
